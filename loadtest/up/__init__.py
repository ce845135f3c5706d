"""`python -m loadtest up`: start the stack here, and show what it does."""
