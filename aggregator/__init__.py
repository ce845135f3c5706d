"""Group queries by token count and dispatch each batch to a model server."""
