"""Wrappers for several players or agents: SelfPlay makes a game an environment of one player, Agents steps all agents."""
