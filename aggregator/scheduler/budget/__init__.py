"""How many tokens a batch may hold."""
