"""Servers in virtual time that embed and generate in the same engine steps, beside those that do one of the two."""
