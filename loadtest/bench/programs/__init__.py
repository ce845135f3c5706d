"""Programs that benchmarks start: what the product is measured against, and what stands in for an engine."""
