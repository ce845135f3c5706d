"""Choose which waiting batches make up the next engine step."""
