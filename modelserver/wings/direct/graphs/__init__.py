"""CUDA graphs of the direct engine's whole forward pass: a short step costs what the GPU computes, not its launches."""
