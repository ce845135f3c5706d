"""Addresses whose endpoints change: of a Service in Kubernetes, or of a name in DNS."""
