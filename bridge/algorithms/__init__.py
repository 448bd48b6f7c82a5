"""Compiled versions of the algorithms of Stable-Baselines3 and sb3-contrib, one file each."""
