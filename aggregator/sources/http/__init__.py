"""HTTP: OpenAI's API for clients that speak it."""
