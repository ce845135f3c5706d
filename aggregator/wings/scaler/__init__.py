"""`python -m aggregator scaler`: lag and demand become the replicas that the model servers need."""
