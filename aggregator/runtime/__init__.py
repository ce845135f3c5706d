"""What every tokenbatch process has in common: strict settings, JSON logs, telemetry, health."""
