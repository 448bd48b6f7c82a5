"""Programs of DQN, SAC, TD3 and DDPG: collecting into a replay store and updating, together or apart."""
