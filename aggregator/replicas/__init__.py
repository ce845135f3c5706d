"""Model servers: found, watched, called."""
