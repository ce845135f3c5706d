"""Measure the hot paths beside what they stand on, in one run, by ratio."""
