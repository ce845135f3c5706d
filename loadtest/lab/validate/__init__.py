"""Hold the simulator against the running system."""
