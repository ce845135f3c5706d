"""The operator's settings: read strictly, explained by --help."""
