"""The model server's service."""
