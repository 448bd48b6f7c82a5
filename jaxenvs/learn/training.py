"""A whole training as one program, on-policy or off-policy. It begins, stops, is saved, and goes on."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any, Self

import jax
import optax
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from jaxenvs import arguments
from jaxenvs.checks import spaces_in_traced_code
from jaxenvs.environment import static, struct
from jaxenvs.learn.off_policy import loop as off_policy
from jaxenvs.learn.off_policy.hindsight import require_goal_space, require_goals
from jaxenvs.learn.off_policy.settings import OffPolicySettings
from jaxenvs.learn.on_policy import loop as on_policy
from jaxenvs.learn.on_policy.settings import OnPolicySettings
from jaxenvs.learn.settings import Settings
from jaxenvs.learn.training_state import TrainingState
from jaxenvs.vector import VectorEnv


@struct
class Training:
    """An algorithm, the environments it trains on, and for how long.

    Numbers are traced, those of the algorithm and of the environments too, so that `vmap` sweeps them.

    Attributes:
      venv: the environments, with auto-reset SAME_STEP.
      network: what the algorithm trains: a Network, as ActorCritic, for PPO() and A2C(); a DQNPolicy, SACPolicy or
        TD3Policy.
      algorithm: the settings, as PPO() or SAC(); the arrays among its schedules have one value for each iteration.
      total_timesteps: of all environments together.
      optimizer: of each network, without a learning rate, on vectors. If not given, that of the algorithm.
      normalize: whether observations and rewards are normalised as by SB3's VecNormalize. What a store holds is not:
        it is normalised when it is drawn.
    """

    venv: VectorEnv
    network: Any = static()
    algorithm: Settings
    total_timesteps: int = static(default=100_000)
    optimizer: optax.GradientTransformation | None = static(default=None)
    normalize: bool = static(default=False)

    @property
    def num_iterations(self) -> int:
        """Rollouts, or rounds of `train_freq` steps, until `total_timesteps` are reached."""
        return -(-self.total_timesteps // (self.algorithm.steps_per_iteration * self.venv.num_envs))

    def replace(self, **changes: Any) -> Self:
        """A copy with some attributes changed; those that are none of its own are settings of the algorithm."""
        own = {field.name for field in dataclasses.fields(self)}
        settings = {name: value for name, value in changes.items() if name not in own}
        changes = {name: value for name, value in changes.items() if name in own}
        if settings:
            changes["algorithm"] = changes.get("algorithm", self.algorithm).replace(**settings)
        return dataclasses.replace(self, **changes)

    def check(self) -> None:
        """
        Raises:
          ValueError, TypeError: it cannot be trained like this; the message names the attribute.
        """
        arguments.instance("venv", self.venv, VectorEnv, "a VectorEnv")
        kinds = (OnPolicySettings, OffPolicySettings)
        arguments.instance("algorithm", self.algorithm, kinds, "an OnPolicySettings or OffPolicySettings")
        self.algorithm.check_network(self.network)
        if self.venv.autoreset is not AutoresetMode.SAME_STEP:
            raise ValueError(f"venv must have auto-reset SAME_STEP to be trained on, got {self.venv.autoreset}.")
        arguments.positive_int("total_timesteps", self.total_timesteps)
        if self.normalize and (found := spaces_in_traced_code(self.venv.env)) is not None:
            space = found[0]
            parts = space.values() if isinstance(space, spaces.Dict) else [space]
            if not all(isinstance(part, spaces.Box) for part in parts):
                raise ValueError(f"normalize takes observations of a Box or of a Dict of them, got {space}.")
        self.algorithm.check()
        if isinstance(self.algorithm, OffPolicySettings) and self.algorithm.hindsight is not None:
            require_goals(self.venv.first_env)
            if (found := spaces_in_traced_code(self.venv.env)) is not None:
                require_goal_space(found[0])
        self.algorithm.check_schedules(self.num_iterations)

    def init(self, key: jax.Array, params: Any = None) -> TrainingState:
        """The state before the first iteration.

        Args:
          key: a typed key. Everything depends on it.
          params: of the network, to start from. If not given, new ones.
        """
        self.check()
        arguments.typed_key("key", key, ())
        state: TrainingState = self._loop.init(self, key, params)
        return state

    @property
    def _loop(self) -> ModuleType:
        return off_policy if isinstance(self.algorithm, OffPolicySettings) else on_policy


@struct
class Result:
    """What a training gave.

    Attributes:
      state: where it ended: `state.learner.params` are the trained parameters, `state.normalizer` what belongs to them.
      metrics: as `advance` gives them.
    """

    state: TrainingState
    metrics: dict[str, jax.Array]

    @property
    def params(self) -> Any:
        """The trained parameters."""
        return self.state.learner.params


def train(key: jax.Array, training: Training, params: Any = None) -> Result:
    """A whole training as one pure function: jit it, or `vmap` it over keys, settings and parameters of environments.

    Args:
      key: a typed key. Everything depends on it.
      training: what to train, and for how long.
      params: of the network, to start from. If not given, new ones.
    """
    arguments.instance("training", training, Training, "a learn.Training")
    return Result(*advance(training, training.init(key, params), training.num_iterations))


def advance(
    training: Training, state: TrainingState, num_iterations: int
) -> tuple[TrainingState, dict[str, jax.Array]]:
    """Go on for some iterations. Two calls one after the other do what one of their sum does, bit for bit.

    Args:
      state: as `training.init` or the call before gave it.
      num_iterations: how many; static.

    Returns:
      The state, and metrics, each with the leading axis `num_iterations`: those of the algorithm's update, 0 where
      nothing was learned yet, and of the rollouts `timesteps` so far, `episodes` that ended, and their mean
      `episode_return` and `episode_length`, which are 0 where `episodes` is.
    """
    arguments.instance("training", training, Training, "a learn.Training")
    arguments.instance("state", state, TrainingState, "a learn.TrainingState, as training.init gives it")
    training.check()
    arguments.non_negative_int("num_iterations", num_iterations)
    result: tuple[TrainingState, dict[str, jax.Array]] = training._loop.advance(training, state, num_iterations)
    return result
