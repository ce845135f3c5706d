"""Texts: prompts and chats are continued token by token, and streamed to callers and to Kafka."""
