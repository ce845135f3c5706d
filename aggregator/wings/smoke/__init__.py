"""`python -m aggregator smoke`: a test of an installation, for `helm test`."""
