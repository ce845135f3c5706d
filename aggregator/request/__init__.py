"""What every station passes on: requests, and the outcome of each input."""
