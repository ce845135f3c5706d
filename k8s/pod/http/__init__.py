"""The one HTTP server of every process: bounded connections, whose requests are served in their order."""
