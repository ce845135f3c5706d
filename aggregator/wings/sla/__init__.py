"""Token budgets that follow a latency target, `sla.latency_s`."""
