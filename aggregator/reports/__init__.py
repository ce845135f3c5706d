"""The state, as other processes read it: demand for the scaler, gauges for metrics."""
