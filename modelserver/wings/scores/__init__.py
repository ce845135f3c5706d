"""Models that score: classifiers and decoders that answer yes or no, read from their files."""
