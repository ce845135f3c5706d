"""Benchmarks and studies of tokenbatch itself; who runs tokenbatch needs none of them."""
