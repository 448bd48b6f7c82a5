"""Compiled functions of PPO and A2C: collecting rollouts, updating, and whole iterations of both."""
