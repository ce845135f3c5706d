"""Callers with credentials: bearer tokens, JSON Web Tokens and client certificates, which name their tenant."""
