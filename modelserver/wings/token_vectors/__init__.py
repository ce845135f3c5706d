"""A vector of each token, or its weight: folders of MultiVectorEncoder, PyLate, ColBERT and BGE-M3."""
