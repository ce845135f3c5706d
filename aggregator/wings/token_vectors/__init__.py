"""A vector of each token of a text, or the weights of its tokens: models of task `token_embed`."""
