"""What other processes read of the state: demand for the scaler, gauges for metrics."""
