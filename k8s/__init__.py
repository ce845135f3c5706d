"""What tokenbatch does on Kubernetes: find endpoints, scale model servers, prove an installation."""
