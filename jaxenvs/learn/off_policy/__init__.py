"""DQN, SAC, TD3 and DDPG, which store all transitions and learn from them repeatedly."""
