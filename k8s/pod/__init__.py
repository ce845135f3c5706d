"""The common part of every process of tokenbatch: settings, logs, metrics, health."""
