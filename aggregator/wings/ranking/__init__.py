"""Rankings and scores: documents in the order of their scores, and scores of pairs of texts."""
