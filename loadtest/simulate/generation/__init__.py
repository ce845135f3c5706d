"""A generating engine in virtual time, bounded by the aggregator's own memory limit and SLA controller."""
