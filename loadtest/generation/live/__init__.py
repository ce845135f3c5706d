"""The figures of seeds 001 and 002 again, on vLLM itself with SmolLM2; times are processor time of its one thread."""
