"""Measure how step time depends on tokens, fit the saturation point, keep the result."""
