"""The path of a request, and what completes it."""
