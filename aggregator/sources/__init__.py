"""Where requests come from and replies go."""
