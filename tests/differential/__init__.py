"""Programs of a user's operations, run on Stable-Baselines3 and on bridge, that must end in the same place."""
