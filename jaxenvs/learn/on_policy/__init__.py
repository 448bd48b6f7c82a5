"""A2C and PPO: rollouts that the policy of the moment collects are learnt from once."""
