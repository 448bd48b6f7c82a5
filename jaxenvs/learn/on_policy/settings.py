"""Base class of the settings of on-policy algorithms."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import optax

from jaxenvs.environment import static, struct
from jaxenvs.learn.devices import require_divisible
from jaxenvs.learn.interfaces import OnPolicyNetwork, Real
from jaxenvs.learn.learner_state import POLICY, LearnerState, Optimizers
from jaxenvs.learn.on_policy.collecting import Rollout
from jaxenvs.learn.optimization import ADAM
from jaxenvs.learn.settings import Settings


@struct
class OnPolicySettings(Settings):
    """Base class of the settings of on-policy algorithms.

    Attributes:
      n_steps: of each environment in one rollout.
      learning_rate: a float; or, for a Training, an array with one for each iteration.
      gamma, gae_lambda: discount and the lambda of generalized advantage estimation.
      ent_coef, vf_coef: weights of entropy and value loss.
      max_grad_norm: longer gradients are scaled down to this norm.
      normalize_advantage: whether advantages are normalized to mean 0 and standard deviation 1, in each batch.
      sde_sample_freq: how many steps use the same noise: 1, except for state-dependent exploration.
    """

    RANGES: ClassVar[dict[str, tuple[float, float]]] = Settings.RANGES | {
        "gae_lambda": (0, 1),
        "ent_coef": (-math.inf, math.inf),
        "vf_coef": (-math.inf, math.inf),
        "max_grad_norm": (0, math.inf),
    }
    COUNTS: ClassVar[tuple[str, ...]] = ("n_steps", "sde_sample_freq")
    NETWORKS: ClassVar[tuple[str, ...]] = (POLICY,)
    OPTIMIZER: ClassVar[optax.GradientTransformation] = ADAM
    # Whether the algorithm takes Masked observations.
    MASKS: ClassVar[bool] = False

    n_steps: int = static(default=2048)
    gae_lambda: Real = 0.95
    ent_coef: Real = 0.0
    vf_coef: Real = 0.5
    max_grad_norm: Real | None = 0.5
    normalize_advantage: bool = static(default=True)
    sde_sample_freq: int = static(default=1)

    @property
    def steps_per_iteration(self) -> int:
        """Steps of each environment in one rollout."""
        return self.n_steps

    def acting_params(self, network: Any, params: Any) -> Any:
        """Return the parameters with which a rollout is collected."""
        return params

    def update(
        self,
        network: OnPolicyNetwork,
        optimizers: Optimizers,
        state: LearnerState,
        rollout: Rollout,
        key: jax.Array,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Learn from one rollout. A pure function of the settings and its arguments.

        Args:
          network: from parameters and observations to a distribution over actions and values.
          optimizers: as `settings.optimizers()` returns them.
          state: the parameters and the states of their optimizers.
          rollout: as `collect` returns it.
          key: a typed key, for shuffling.

        Returns:
          The next state, and metrics with SB3's names and meanings.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define update.")

    def check_devices(self, num_devices: int, num_envs: int) -> None:
        """Raise where several devices cannot share the environments and the minibatches equally."""
        super().check_devices(num_devices, num_envs)
        batch_size = getattr(self, "batch_size", None)  # A2C has none
        if batch_size is not None:
            require_divisible("batch_size", batch_size, num_devices)
            if (size := self.n_steps * num_envs) % min(batch_size, size):
                raise ValueError(
                    "Over several devices, n_steps * num_envs must be a multiple of batch_size, because the devices "
                    f"share each minibatch equally, got {self.n_steps} * {num_envs} and {batch_size}."
                )
