"""Networks of sb3-contrib's CrossQ without their weights, as jaxenvs.learn trains them: with running statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bridge.translate.policies.exported_network import ExportedNetwork, Params
from bridge.translate.policies.off_policy_networks import ExportedCritic, ExportedSACActor
from bridge.translate.pytorch.modules import unravel
from jaxenvs.learn.interfaces import Observation
from jaxenvs.learn.networks.distributions import SquashedGaussian, StateDependentGaussian
from jaxenvs.learn.off_policy.contrib.batch_renorm import BatchStatistics


class ExportedCrossQActor(ExportedSACActor):
    """Actor of a CrossQPolicy."""

    has_statistics: ClassVar[bool] = True

    def apply(
        self,
        params: Params,
        observation: Observation,
        statistics: jax.Array | None = None,
        batches: BatchStatistics | None = None,
    ) -> SquashedGaussian | StateDependentGaussian:
        """Return the distribution over actions in [-1, 1] for a batch of observations, as ExportedSACActor.

        Args:
          params: by name, or as a vector. Everything is computed in their dtype.
          statistics: the running statistics as a vector, if they are not among the params.
          batches: renormalizes in training; None: the running statistics are used.
        """
        return self._distribution(_with(self, params, statistics), observation, **_options(batches))

    distribution = apply


class ExportedCrossQCritic(ExportedCritic):
    """Critics of a CrossQPolicy."""

    def apply(
        self,
        params: Params,
        observation: Observation,
        action: jax.Array,
        statistics: jax.Array | None = None,
        batches: BatchStatistics | None = None,
    ) -> jax.Array:
        """Return the values, (n_critics, batch), of a batch of observations and of actions in [-1, 1].

        Args:
          params: by name, or as a vector. Everything is computed in their dtype.
          statistics: the running statistics as a vector, if they are not among the params.
          batches: renormalizes in training; None: the running statistics are used.
        """
        outputs = self.outputs(_with(self, params, statistics), observation, action, **_options(batches))
        return jnp.stack([value[:, 0] for value in outputs])


def _with(network: ExportedNetwork, params: Params, statistics: jax.Array | None) -> Mapping[str, jax.Array]:
    named = network.named(params)
    return named if statistics is None else {**named, **unravel(network.module.statistics, statistics)}


def _options(batches: BatchStatistics | None) -> dict[str, Any]:
    return {} if batches is None else {"instead": {"batch_renorm": batches.renormalize}}
