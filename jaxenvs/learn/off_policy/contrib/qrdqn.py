"""Quantile-regression DQN (Dabney et al. 2018, https://arxiv.org/abs/1710.10044), as in sb3-contrib."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import optax

from jaxenvs.environment import Environment, struct
from jaxenvs.learn.interfaces import Arrays, Real
from jaxenvs.learn.learner_state import Optimizers
from jaxenvs.learn.networks.actor_critic import ActionHead, Activation
from jaxenvs.learn.off_policy.contrib.quantiles import quantile_huber_loss
from jaxenvs.learn.off_policy.dqn import DQN
from jaxenvs.learn.off_policy.policies import OffPolicyPolicy, Params, Perceptron, QNetwork, spaces_of
from jaxenvs.learn.off_policy.store.replay import Transitions


@dataclasses.dataclass(frozen=True)
class QuantileNetwork(QNetwork):
    """Network for the quantiles of the returns of all actions, (batch, n_quantiles, n)."""

    n_quantiles: int

    def apply(self, params: Params, observation: Arrays) -> jax.Array:
        numbers = super().apply(params, observation)
        return numbers.reshape(len(numbers), self.n_quantiles, -1)


@dataclasses.dataclass(frozen=True)
class QRDQNPolicy(OffPolicyPolicy):
    """Quantile network for Discrete actions.

    Attributes:
      quantile_net: the quantiles of the returns of all actions.
    """

    quantile_net: QuantileNetwork
    head: ActionHead

    @classmethod
    def of(
        cls,
        env: Environment[Any],
        net_arch: tuple[int, ...] = (64, 64),
        activation: Activation = jax.nn.relu,
        n_quantiles: int = 200,
    ) -> Self:
        """Return the network for the spaces of an environment.

        Args:
          net_arch: sizes of the hidden layers.
          activation: after each hidden layer.
          n_quantiles: of the returns of each action.

        Raises:
          ValueError: actions are not Discrete.
        """
        extractor, head = spaces_of(cls.__name__, env, "discrete")
        sizes = (extractor.size, *net_arch, n_quantiles * head.size)
        return cls(QuantileNetwork(extractor, Perceptron("quantile_net", sizes, activation), n_quantiles), head)

    def init(self, key: jax.Array) -> dict[str, Params]:
        return {"quantile_net": self.quantile_net.init(key)}


@struct
class QRDQN(DQN):
    """Quantile-regression DQN (Dabney et al. 2018, https://arxiv.org/abs/1710.10044).

    Use it for Discrete actions: it learns the distribution of returns instead of their mean. Its settings are DQN's.
    Gradients are not scaled down if `max_grad_norm` is None.
    """

    POLICY: ClassVar[type[OffPolicyPolicy]] = QRDQNPolicy
    NETWORKS: ClassVar[tuple[str, ...]] = ("quantile_net",)
    TARGETS: ClassVar[tuple[str, ...]] = ("quantile_net",)

    learning_rate: Real | dict[str, Real] = 5e-5
    exploration_fraction: Real = 0.005
    exploration_final_eps: Real = 0.01
    max_grad_norm: Real | None = None

    def optimizers(self, optimizer: optax.GradientTransformation | None = None) -> Optimizers:
        """Return an optimizer for each network; by default, Adam with the paper's epsilon, 0.01 / batch_size."""
        return super().optimizers(optax.scale_by_adam(eps=0.01 / self.batch_size) if optimizer is None else optimizer)

    def values(self, policy: OffPolicyPolicy, params: Any, observation: Arrays) -> jax.Array:
        """Return the value of each action, (batch, n): the mean of its quantiles."""
        quantiles: jax.Array = policy.quantile_net.apply(params["quantile_net"], observation)
        return quantiles.mean(1)

    def _loss_of(
        self, policy: OffPolicyPolicy, targets: Mapping[str, Any], batch: Transitions
    ) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
        """Return the loss as a function of the parameters, as DQN does."""

        def chosen(quantiles: jax.Array, action: jax.Array) -> jax.Array:
            """Select the quantiles of one action, (n_quantiles, batch)."""
            # Compare with every action rather than index, because the gradient of indexing would be a scatter.
            is_chosen = action[:, None, None].astype(jnp.int32) == jnp.arange(quantiles.shape[2], dtype=jnp.int32)
            return jnp.sum(jnp.where(is_chosen, quantiles, 0), axis=2).T

        following = policy.quantile_net.apply(targets["quantile_net_target"], batch.next_observation)
        following = chosen(following, jnp.argmax(following.mean(1), axis=1))
        target = batch.reward + batch.discount * following

        def loss_of(params: jax.Array) -> tuple[jax.Array, jax.Array]:
            quantiles = chosen(policy.quantile_net.apply(params, batch.observation), batch.action)
            losses = quantile_huber_loss(quantiles, target) * len(quantiles)  # their sum over the quantiles
            return jnp.mean(batch.weighted(losses)), quantiles.mean(0) - target.mean(0)

        return loss_of
