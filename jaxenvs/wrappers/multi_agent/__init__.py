"""Wrappers for several players or agents."""
