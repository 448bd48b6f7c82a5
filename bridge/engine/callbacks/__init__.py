"""Callbacks: which steps they need to see, and how they are shown the steps that a compiled function took."""
