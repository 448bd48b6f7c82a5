"""Self-play for Stable-Baselines3's classes: opponents from models, the pool of past selves, tournaments."""
