"""One page that shows what each way of batching does, from simulations made on the spot."""
