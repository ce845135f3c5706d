"""Rates of tenants: each is held to its tokens per second, over all aggregators together."""
