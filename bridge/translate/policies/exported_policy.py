"""Actor-critic policies without their weights, as jaxenvs.learn trains them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bridge.translate.policies.exported_network import Exploration, ExportedNetwork
from bridge.translate.pytorch.modules import ExportedModule, Params
from jaxenvs.learn.interfaces import Memory, Observation, Recalled, unmasked
from jaxenvs.learn.networks.distributions import Distribution, StateDependentGaussian
from jaxenvs.learn.networks.lstm import latents, no_memory, remember
from jaxenvs.learn.on_policy.pqn import RATE, epsilon_greedy


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

    def _outputs(self, params: Mapping[str, jax.Array], observation: object) -> tuple[jax.Array, ...]:
        """Return the actor's last hidden layer, the numbers for the head, and the values, (batch, 1)."""
        outputs: tuple[jax.Array, ...] = self.numbers(params, observation)
        return outputs

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

    def exploring(self, params: Params, rate: jax.typing.ArrayLike) -> Params:
        """Return the parameters with which a share `rate` of the actions is random."""
        named = self.named(params)
        return {**named, RATE: jnp.full_like(named[RATE], rate)}


@dataclasses.dataclass(frozen=True)
class ExportedRecurrentPolicy(ExportedPolicy):
    """ExportedPolicy for observations that are Recalled. Its module computes the features of actor and critic.

    Attributes:
      behind: maps the outputs of the LSTMs to the outputs of an ExportedPolicy's module.
      lstms: the names of the LSTMs' parameters.
      layers, size: of each LSTM.
      critic: one of `jaxenvs.learn.networks.lstm.CRITICS`.
    """

    behind: ExportedModule
    lstms: tuple[str, ...]
    layers: int
    size: int
    critic: str

    @property
    def modules(self) -> tuple[ExportedModule, ...]:
        return self.module, self.behind

    @property
    def learnt_elsewhere(self) -> frozenset[str]:
        return frozenset({"log_std", *self.lstms})

    def _outputs(self, params: Mapping[str, jax.Array], observation: Any) -> Any:
        pi, vf = self.numbers(params, observation.observation)
        return self.behind(params, *latents(params, pi, vf, observation, self.critic))

    def recall(self, params: Params, seen: Recalled) -> dict[str, Memory]:
        """Return the recurrent state after a step, for each row."""
        params, (seen, _) = self.named(params), unmasked(seen)
        pi, vf = self.numbers(params, seen.observation)
        return remember(params, pi, vf, seen, self.critic)

    def no_memory(self, params: Params, num_envs: int) -> dict[str, Memory]:
        """Return the recurrent state before the first step."""
        return no_memory(num_envs, self.layers, self.size, jax.tree.leaves(params)[0].dtype)
