"""Write replies and dead letters."""
