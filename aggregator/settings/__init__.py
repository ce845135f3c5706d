"""What an operator sets: read strictly, explained by --help."""
