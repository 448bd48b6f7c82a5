"""Callbacks: in which steps they look, and how they are shown the steps that a program took."""
