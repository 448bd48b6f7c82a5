"""Parallelised Q-learning (PQN; Gallici et al. 2025, https://arxiv.org/abs/2407.04811)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxenvs.environment import Environment, static, struct
from jaxenvs.learn.interfaces import Arrays, Real
from jaxenvs.learn.networks.actor_critic import ActionHead, Activation, FlattenExtractor, linear
from jaxenvs.learn.networks.distributions import Categorical
from jaxenvs.learn.networks.pickling import PicklableActivation
from jaxenvs.learn.off_policy.policies import init_linear
from jaxenvs.learn.on_policy.collecting import Rollout
from jaxenvs.learn.on_policy.minibatches import MinibatchSettings

# The parameter that is no weight: the share of random actions, (1,), which an optimizer leaves as it is.
RATE = "exploration_rate"
# PyTorch's.
LAYER_NORM_EPSILON = 1e-5
# Of an action that is never taken, so that its logarithm is finite.
SMALLEST_PROBABILITY = 1e-30


def epsilon_greedy(values: jax.Array, rate: jax.Array) -> Categorical:
    """Return the distribution that takes a random action with probability `rate`, and else the most valuable one.

    Args:
      values: of each action, (batch, n).
      rate: (1,).
    """
    num = values.shape[-1]
    greedy = values.argmax(axis=-1)[..., None] == jnp.arange(num)
    probabilities = rate / num + (1 - rate) * greedy.astype(values.dtype)
    return Categorical(jnp.log(jnp.maximum(probabilities, SMALLEST_PROBABILITY)))


@dataclasses.dataclass(frozen=True)
class PQNNetwork(PicklableActivation):
    """Q-network for PQN: linear layers, each with a layer norm before its activation.

    As the network of an on-policy algorithm, it acts epsilon-greedily, and the value of an observation is that of its
    best action.

    Attributes:
      extractor: from observations to numbers.
      head: of a Discrete action space.
      hidden: sizes of the hidden layers.
      activation: after each of them.
    """

    extractor: FlattenExtractor
    head: ActionHead
    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = jax.nn.relu

    @classmethod
    def of(cls, env: Environment[Any], hidden: tuple[int, ...] = (64, 64), **settings: Any) -> PQNNetwork:
        """Return the network for an environment.

        Raises:
          ValueError: its action space is not Discrete.
        """
        head = ActionHead.of(env.action_space)
        if head.kind != "discrete":
            raise ValueError(f"PQN needs a Discrete action space, got {env.action_space}.")
        return cls(FlattenExtractor(env.observation_space), head, hidden, **settings)

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        """Draw weights and biases as PyTorch does. The share of random actions is 0: `exploring` sets another."""
        sizes, params = (self.extractor.size, *self.hidden, self.head.size), {RATE: jnp.zeros(1)}
        for index, layer_key in enumerate(jax.random.split(key, len(sizes) - 1)):
            params |= init_linear(layer_key, self._name(3 * index), *sizes[index : index + 2])
        for index, size in enumerate(self.hidden):
            name = self._name(3 * index + 1)
            params |= {f"{name}.weight": jnp.ones(size), f"{name}.bias": jnp.zeros(size)}
        return params

    def values(self, params: dict[str, jax.Array], observation: Arrays) -> jax.Array:
        """Return the value of each action, (batch, n)."""
        x = self.extractor(observation, params[RATE].dtype)
        for index in range(len(self.hidden)):
            x = linear(params, self._name(3 * index), x)
            x = jax.nn.standardize(x, epsilon=LAYER_NORM_EPSILON)
            norm = self._name(3 * index + 1)
            x = self.activation(x * params[f"{norm}.weight"] + params[f"{norm}.bias"])
        return linear(params, self._name(3 * len(self.hidden)), x)

    def apply(self, params: dict[str, jax.Array], observation: Arrays) -> tuple[Categorical, jax.Array]:
        """Return the epsilon-greedy distribution and the value of the best action, (batch,)."""
        values = self.values(params, observation)
        return epsilon_greedy(values, params[RATE]), values.max(axis=-1)

    def exploring(self, params: dict[str, jax.Array], rate: Real) -> dict[str, jax.Array]:
        """Return the parameters with which a share `rate` of the actions is random."""
        return params | {RATE: jnp.full_like(params[RATE], rate)}

    def to_env(self, action: jax.Array) -> jax.Array:
        """Convert a batch of samples of the distribution to actions of the environments."""
        return self.head.to_env(action)

    @staticmethod
    def _name(index: int) -> str:
        return f"mlp_extractor.q_net.{index}"


@struct
class PQN(MinibatchSettings):
    """Parallelised Q-learning (Gallici et al. 2025, https://arxiv.org/abs/2407.04811).

    Q-learning from rollouts of many environments, without a replay buffer and without a target network, which layer
    norm makes stable. Use it for Discrete actions in fast environments. Of the settings of OnPolicySettings it does not
    use `ent_coef`, `vf_coef` and `normalize_advantage`; it has those of MinibatchSettings, and:

    Attributes:
      gae_lambda: the lambda of the returns that values are moved to.
      exploration_rate: the share of random actions in a rollout; a float, or an array with one for each iteration.
    """

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate", "exploration_rate")
    RANGES: ClassVar[dict[str, tuple[float, float]]] = MinibatchSettings.RANGES | {"exploration_rate": (0, 1)}
    STATISTICS: ClassVar[tuple[str, ...]] = ("loss", "q_values")

    n_steps: int = static(default=32)
    learning_rate: Real | dict[str, Real] = 2.5e-4
    gae_lambda: Real = 0.65
    max_grad_norm: Real | None = 10.0
    normalize_advantage: bool = static(default=False)
    batch_size: int = static(default=128)
    n_epochs: int = static(default=2)
    exploration_rate: Real = 0.1

    def check_network(self, network: object) -> None:
        """Raise unless the network has values of all actions.

        Raises:
          TypeError: it has none.
        """
        if not callable(getattr(network, "exploring", None)):
            raise TypeError(f"network must be a learn.PQNNetwork, got a {type(network).__name__}.")

    def acting_params(self, network: Any, params: Any) -> Any:
        """Return the parameters that act, with the present share of random actions."""
        return network.exploring(params, self.exploration_rate)

    def _loss(self, network: Any, params: Any, batch: Rollout) -> tuple[jax.Array, jax.Array]:
        values: jax.Array = network.values(params, batch.observation)
        # Compare with every action rather than index, because the gradient of indexing would be a scatter.
        chosen = batch.action[:, None].astype(jnp.int32) == jnp.arange(values.shape[1], dtype=jnp.int32)
        value = jnp.sum(jnp.where(chosen, values, 0), axis=1)
        loss, mean = jnp.stack([0.5 * (value - batch.returns) ** 2, value]).mean(1)
        return loss, jnp.stack([loss, mean])
