"""The scaler: turns lag and demand into the replicas that the model servers need."""
