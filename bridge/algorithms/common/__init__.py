"""What algorithms share, file by file as in `stable_baselines3.common`."""
