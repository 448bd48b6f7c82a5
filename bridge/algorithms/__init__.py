"""Stable-Baselines3's algorithms, compiled."""
