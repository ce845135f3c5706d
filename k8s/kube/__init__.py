"""The Kubernetes API: a client, and the endpoints of a Service."""
