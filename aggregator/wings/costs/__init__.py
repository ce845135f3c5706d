"""What each tenant costs: the engines' time, and the tokens that they computed."""
