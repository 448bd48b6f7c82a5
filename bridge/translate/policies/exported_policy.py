"""ExportedPolicy: an actor-critic policy without its weights, as jaxenvs.learn trains it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch

from bridge.translate.policies.exported_network import Encoded, Exploration, ExportedNetwork
from bridge.translate.pytorch.modules import ExportedModule, Params
from jaxenvs.learn.interfaces import Observation, unmasked
from jaxenvs.learn.networks.distributions import Distribution, StateDependentGaussian
from jaxenvs.learn.on_policy.pqn import RATE, epsilon_greedy

# --- What the modules compute, in PyTorch -------------------------------------------------------------------------


def features(policy: Any, x: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the features of the actor and of the critic."""
    pi_features = policy.pi_features_extractor(x)
    return pi_features, pi_features if policy.share_features_extractor else policy.vf_features_extractor(x)


def layers_behind(policy: Any, of_actor: torch.Tensor, of_critic: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Compute the outputs of an ExportedPolicy's module from the features, or from the outputs of LSTMs."""
    latent_pi = policy.mlp_extractor.policy_net(of_actor)
    latent_vf = policy.mlp_extractor.value_net(of_critic)
    return latent_pi, policy.action_net(latent_pi), policy.value_net(latent_vf)


# --- The policies, in JAX -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ExportedPolicy(ExportedNetwork):
    """Actor-critic policy without its weights. Policies of equal architecture are equal, and share compiled functions.

    Its module maps encoded observations to the actor's last hidden layer, the numbers for the head, and the value,
    (batch, 1).

    Attributes:
      exploration: settings of state-dependent exploration; None without it.
    """

    exploration: Exploration | None

    @property
    def modules(self) -> tuple[ExportedModule, ...]:
        """All translated modules of the policy."""
        return (self.module,)

    @property
    def learnt_elsewhere(self) -> frozenset[str]:
        """Names of the parameters that get a gradient in another way than through the modules."""
        return frozenset({"log_std"})

    def apply(self, params: Params, observation: Observation) -> tuple[Distribution, jax.Array]:
        """Return the distribution over actions and the values, (batch,), for observations, which may be Masked.

        Raises:
          RuntimeError: the mask has another size than the actions.
        """
        params, (observation, mask) = self.named(params), unmasked(observation)
        latent, numbers, value = self._outputs(params, observation)
        value = jax.lax.squeeze(value, (1,))
        if self.exploration is None:
            try:
                return self.head.distribution(numbers, params.get("log_std"), mask), value
            except ValueError as error:
                raise RuntimeError(str(error)) from None  # sb3-contrib raises this class
        settings = dataclasses.asdict(self.exploration)
        return StateDependentGaussian(numbers, latent, params["log_std"], **settings), value

    def _outputs(self, params: Mapping[str, jax.Array], observation: Any) -> Any:
        """Return the actor's last hidden layer, the numbers for the head, and the values, (batch, 1)."""
        return self.numbers(params, observation)

    def distribution(self, params: Params, observation: Observation) -> Distribution:
        """Return the distribution over actions, as `apply` does."""
        return self.apply(params, observation)[0]

    def to_env(self, action: jax.Array) -> jax.Array:
        """Return a batch of samples as actions of the environments, in their dtype: for a Box clipped or unscaled."""
        if self.exploration is None or not self.exploration.squash:
            return self.head.to_env(action)
        return super().to_env(action)


@dataclasses.dataclass(frozen=True)
class ExportedPQNPolicy(ExportedPolicy):
    """PQN's policy without its weights: its module computes the value of each action, (batch, n)."""

    @property
    def learnt_elsewhere(self) -> frozenset[str]:
        return frozenset({"log_std", RATE})

    def values(self, params: Params, observation: Observation) -> jax.Array:
        """Return the value of each action, (batch, n)."""
        values: jax.Array = self.numbers(self.named(params), observation)
        return values

    def apply(self, params: Params, observation: Observation) -> tuple[Distribution, jax.Array]:
        """Return the epsilon-greedy distribution and the value of the best action, (batch,)."""
        params = self.named(params)
        values = self.values(params, observation)
        return epsilon_greedy(values, params[RATE]), values.max(axis=-1)

    def exploring(self, params: Params, rate: Any) -> Params:
        """Return the parameters with which a share `rate` of the actions is random."""
        named = self.named(params)
        return {**named, RATE: jnp.full_like(named[RATE], rate)}
