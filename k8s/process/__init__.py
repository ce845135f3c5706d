"""What every process of tokenbatch has: settings, logs, metrics, health."""
