"""The figures of Pang et al. and Daniel et al. on vLLM with SmolLM2; times are processor time of its one thread."""
