"""The measurements of the scaler, and the formula that turns them into figures."""
