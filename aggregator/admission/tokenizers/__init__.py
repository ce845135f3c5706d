"""Count tokens exactly as the model does."""
