"""Compiled functions instead of Stable-Baselines3's loops: what is compiled, collecting, updating, callbacks."""
