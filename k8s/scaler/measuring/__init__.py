"""What the scaler measures, and the formula that turns it into figures."""
