"""Upgrades that between them change every value of the chart, and where each shows on the cluster."""
