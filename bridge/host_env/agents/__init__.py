"""Environments of several agents that are stepped on the host."""
