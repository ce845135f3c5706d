"""Texts under way: what each asks for, how it grows, and the server that it grows at."""
