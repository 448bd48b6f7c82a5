"""Base classes of the algorithms, in files named as in `stable_baselines3.common`."""
