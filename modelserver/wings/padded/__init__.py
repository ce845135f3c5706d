"""Encoders that vLLM has no class for, computed by transformers in rows of one length."""
