"""LearnerState: what the updates of all algorithms change, by the names of networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxenvs.environment import struct
from jaxenvs.learn.optimization import ravel

# The name of the only network that on-policy algorithms train.
POLICY = "policy"

# The optimizer of each network, by its name. It has no learning rate, and works on vectors.
Optimizers = Mapping[str, optax.GradientTransformation]


@struct
class LearnerState:
    """Parameters, optimizer states and target networks of a training, by the names of networks.

    Attributes:
      params: "policy" for on-policy algorithms; "q_net", "quantile_net", or "actor" and "critic" for off-policy
        algorithms. Also "log_ent_coef", (1,), if the entropy coefficient is learned.
      targets: "q_net_target" and so on, for the networks that have a target network. CrossQ has its running statistics
        here: "actor_statistics", and "actor_steps", the number of batches that they summarize. Empty for on-policy
        algorithms.
      optimizer_states: by the same names as `params`; their arrays are vectors, as `ravel` orders them.
      num_updates: int32, as SB3 counts `_n_updates`: gradient steps, or epochs for PPO.
    """

    params: dict[str, Any]
    targets: dict[str, Any]
    optimizer_states: dict[str, Any]
    num_updates: jax.Array

    @classmethod
    def create(
        cls, params: Mapping[str, Any], optimizers: Optimizers, targets: Mapping[str, Any] | None = None
    ) -> LearnerState:
        """Return the state before the first update.

        Args:
          params: the parameters of each network, by its name.
          optimizers: by the same names.
          targets: see the attribute.
        """
        states = {name: optimizers[name].init(ravel(params[name])[0]) for name in params}
        return cls(dict(params), dict(targets or {}), states, jnp.zeros((), jnp.int32))

    @property
    def network_params(self) -> Any:
        """Parameters as `network.init` makes them: of the policy alone, or of each network by its name."""
        return self.params.get(POLICY, self.params)
