"""Drive tokenbatch as its users would, start all of it on one machine, and measure it."""
