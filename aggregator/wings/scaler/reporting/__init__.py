"""What each aggregator tells the scaler: what arrives, what it holds, and what the model servers can do."""
