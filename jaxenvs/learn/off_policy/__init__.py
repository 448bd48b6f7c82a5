"""DQN, SAC, TD3 and DDPG: all that was seen is stored, and learnt from again and again."""
