"""A2C, PPO and their variants, which learn once from each rollout that the current policy collects."""
