"""PyTorch and Stable-Baselines3 on top of jaxenvs."""
