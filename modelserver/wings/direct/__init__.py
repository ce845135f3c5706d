"""Encoders computed by a forward pass of our own over the weights that vLLM loaded: `engine.kind` direct and auto."""
