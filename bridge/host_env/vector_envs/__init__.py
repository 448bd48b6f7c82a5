"""Vector environments of Gymnasium, which a GymVecEnv presents to Stable-Baselines3."""
