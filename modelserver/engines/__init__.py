"""The engines that compute a step: vLLM driven in two ways, or a synthetic engine; the choice between them."""
