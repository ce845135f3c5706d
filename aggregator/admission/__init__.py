"""Everything that may refuse a request: routing, limits, token counts."""
