"""Of more than 32 model servers of a model, each aggregator uses as many as its work needs."""
