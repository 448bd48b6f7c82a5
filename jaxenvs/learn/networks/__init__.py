"""Networks of on-policy algorithms, the distributions over actions that they return, and LSTMs."""

from jaxenvs.learn.networks.actor_critic import ActionHead, ActorCritic, FlattenExtractor, Masked, Network

__all__ = ["ActionHead", "ActorCritic", "FlattenExtractor", "Masked", "Network"]
