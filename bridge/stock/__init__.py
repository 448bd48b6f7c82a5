"""Algorithms in PyTorch, in SB3's terms, that neither Stable-Baselines3 nor sb3-contrib has: what we compile."""
