"""Requests, and the outcome of each input, as every station passes them on."""
