"""Capabilities that some users do without: each a folder that one commit can remove."""
