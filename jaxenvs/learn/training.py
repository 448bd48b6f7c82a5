"""A whole training as one compiled function, on-policy or off-policy, which can be stopped, saved and continued."""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any, Self

import jax
import optax
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from jax.sharding import Mesh

from jaxenvs import arguments
from jaxenvs.checks import spaces_in_traced_code
from jaxenvs.compilation import guarded_jit
from jaxenvs.compilation.cache import configure_by_default
from jaxenvs.environment import struct
from jaxenvs.learn.devices import layouts, require_mesh, run_on
from jaxenvs.learn.off_policy import loop as off_policy
from jaxenvs.learn.off_policy.settings import OffPolicySettings
from jaxenvs.learn.off_policy.store.hindsight import require_goal_space, require_goals
from jaxenvs.learn.on_policy import loop as on_policy
from jaxenvs.learn.on_policy.settings import OnPolicySettings
from jaxenvs.learn.training_state import TrainingSetup, TrainingState
from jaxenvs.transformations import in_any_context
from jaxenvs.vector import VectorEnv


@struct
class Training(TrainingSetup):
    """Algorithm, the environments that it trains on, and the number of steps.

    Numbers are traced, including the numbers of the algorithm and of the environments, so that `vmap` sweeps them.

    Attributes:
      venv: the environments, with auto-reset SAME_STEP.
      network: what the algorithm trains: a Network, as ActorCritic, for PPO() and A2C(); a DQNPolicy, SACPolicy or
        TD3Policy.
      algorithm: the settings, as PPO() or SAC(); arrays among its schedules have one value for each iteration.
      total_timesteps: of all environments together.
      optimizer: of each network, without a learning rate, on vectors. If not given, the algorithm's default.
      normalize: whether observations and rewards are normalized as by SB3's VecNormalize. A store holds unnormalized
        steps, which are normalized when they are sampled.
    """

    @property
    def num_iterations(self) -> int:
        """Rollouts, or rounds of `train_freq` steps, until `total_timesteps` are reached."""
        return -(-self.total_timesteps // (self.algorithm.steps_per_iteration * self.venv.num_envs))

    def check(self) -> None:
        """Raise if this training cannot run.

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
        expected = "None or an optax.GradientTransformation, such as optax.scale_by_adam()"
        arguments.instance("optimizer", self.optimizer, (optax.GradientTransformation, type(None)), expected)
        arguments.boolean("normalize", self.normalize)
        if self.normalize and (found := spaces_in_traced_code(self.venv.env)) is not None:
            space = found[0]
            parts = space.values() if isinstance(space, spaces.Dict) else [space]
            if not all(isinstance(part, spaces.Box) for part in parts):
                raise ValueError(f"normalize needs a Box observation space or a Dict of Boxes, got {space}.")
        self.algorithm.check()
        if isinstance(self.algorithm, OffPolicySettings) and self.algorithm.hindsight is not None:
            require_goals(self.venv.first_env)
            if (found := spaces_in_traced_code(self.venv.env)) is not None:
                require_goal_space(found[0])
        self.algorithm.check_schedules(self.num_iterations)
        per_iteration = self.algorithm.steps_per_iteration * self.venv.num_envs
        if self.num_iterations * per_iteration > arguments.MOST:
            raise ValueError(
                f"total_timesteps must be at most {arguments.MOST // per_iteration * per_iteration}, because steps are "
                f"counted in 32 bits and an iteration takes {per_iteration}, got {self.total_timesteps}."
            )

    def check_devices(self, mesh: Mesh | None) -> None:
        """Raise unless the devices of the mesh can share the training equally.

        Raises:
          ValueError, TypeError: they cannot share it equally, or `mesh` is not a mesh; the message says why.
        """
        if mesh is not None:
            self.algorithm.check_devices(require_mesh(mesh).size, self.venv.num_envs)

    @in_any_context
    def init(self, key: jax.Array, params: Any = None, mesh: Mesh | None = None) -> TrainingState:
        """Return the state before the first iteration.

        Args:
          key: a typed key, which determines everything.
          params: of the network, to start from. If not given, new ones.
          mesh: the devices to train on, as for `advance`.
        """
        configure_by_default()
        self.check()
        self.check_devices(mesh)
        arguments.typed_key("key", key, ())
        state: TrainingState = self._loop.init(self, key, params, None if mesh is None else require_mesh(mesh))
        return state

    def layout(self, sharded: Any, same: Any) -> Self:
        """Return a prefix of this pytree: environments with individual parameters are divided, the rest is the same."""
        return dataclasses.replace(self, venv=same if self.venv.env_axis is None else sharded, algorithm=same)

    def of_one_device(self, mesh: Mesh) -> Self:
        """Return the training of one device, with its part of the environments."""
        venv = dataclasses.replace(self.venv, num_envs=self.venv.num_envs // mesh.size)
        return dataclasses.replace(self, venv=venv, algorithm=self.algorithm.of_one_device(mesh))

    @property
    def _loop(self) -> ModuleType:
        return off_policy if isinstance(self.algorithm, OffPolicySettings) else on_policy


@struct
class Result:
    """Result of a training: its final state and its metrics.

    Attributes:
      state: the final state. `state.learner` holds the trained parameters, `state.normalizer` their statistics.
      metrics: the metrics that `advance` returns.
    """

    state: TrainingState
    metrics: dict[str, jax.Array]

    @property
    def params(self) -> Any:
        """Trained parameters, as `network.init` makes them."""
        return self.state.learner.network_params


@in_any_context
def train(
    key: jax.Array, training: Training, params: Any = None, mesh: Mesh | None = None, progress: bool = False
) -> Result:
    """Run a whole training as one pure function: jit it, or `vmap` it over keys, settings and environment parameters.

    Args:
      key: a typed key, which determines everything.
      training: what to train, and for how long.
      params: of the network, to start from. If not given, new ones.
      mesh, progress: devices to train on, and whether to show a progress bar, as for `advance`; static.
    """
    arguments.instance("training", training, Training, "a learn.Training")
    return Result(*advance(training, training.init(key, params, mesh), training.num_iterations, mesh, progress))


@in_any_context
def advance(
    training: Training, state: TrainingState, num_iterations: int, mesh: Mesh | None = None, progress: bool = False
) -> tuple[TrainingState, dict[str, jax.Array]]:
    """Continue a training for some iterations. Two calls do the same, bit for bit, as one call for their sum.

    Args:
      training: what to train. Its `total_timesteps` ends nothing here, but schedules and exploration depend on it.
      state: a state from `training.init` or from the previous call.
      num_iterations: how many iterations; static.
      mesh: devices, from `learn.make_mesh()`, each of which takes its part of the environments, the minibatches and the
        replay store; static. The sizes in `training` (`num_envs`, `batch_size`, `buffer_size`, `total_timesteps`) are
        totals over all devices. Use the same mesh for `init`, or put the state there with `place`. Several devices draw
        other actions, shuffles and batches than one, but the episodes of an environment still follow from the key.
      progress: whether to move a progress bar on stderr about twice a second; static. It shows the steps of these
        iterations and `episode_return`, under `vmap` and in a `sweep` the median of all trainings. The results are the
        same, but JAX does not keep the compiled function on disk, and it has no gradient.

    Returns:
      The state, and metrics, each with the leading axis `num_iterations`. The metrics of the algorithm's update are 0
      before the first update. The others are:

      * `timesteps`: how many steps all environments together have taken so far.
      * `episodes`: how many episodes ended in this iteration.
      * `episode_return`, `episode_length`: means of the last 100 episodes that ended, as SB3's `ep_rew_mean` and
        `ep_len_mean`; NaN before the first episode has ended. Episodes are ordered by step, then by environment; over
        a mesh, the environments of all devices count.
      * `iteration_episode_return`, `iteration_episode_length`: means of the episodes that ended in this iteration; NaN
        if none did. Weight them by `episodes` to average over iterations.

      Under `jax_debug_nans`, where JAX refuses every NaN, these four are 0 instead of NaN.
    """
    configure_by_default()
    arguments.instance("training", training, Training, "a learn.Training")
    arguments.instance("state", state, TrainingState, "a learn.TrainingState, as training.init returns it")
    training.check()
    names = [sorted(each) for each in (training.algorithm.optimizers(training.optimizer), state.learner.params)]
    if names[0] != names[1] or training.normalize != (state.normalizer is not None):
        raise ValueError(
            f"state must be of a training of {names[0]} with normalize={training.normalize}, as training.init returns "
            f"it, got one of {names[1]} with normalize={state.normalizer is not None}."
        )
    arguments.non_negative_int("num_iterations", num_iterations)
    arguments.boolean("progress", progress)
    result: tuple[TrainingState, dict[str, jax.Array]]
    if mesh is not None:
        training.check_devices(mesh)
        result = _advance_on_devices(training, state, num_iterations, require_mesh(mesh), progress)
    else:
        result = training._loop.advance(training, state, num_iterations, progress)
    return result


@functools.partial(guarded_jit, static_argnums=(2, 3, 4))
def _advance_on_devices(
    training: Training, state: TrainingState, num_iterations: int, mesh: Mesh, progress: bool
) -> tuple[TrainingState, dict[str, jax.Array]]:
    def advance_one(training: Training, state: TrainingState) -> Any:
        return training._loop.advance(training, state, num_iterations, progress)

    sharded, same = layouts(mesh)
    result: tuple[TrainingState, dict[str, jax.Array]]
    result = run_on(mesh, advance_one, (state.layout(sharded, same), same), training, state)
    return result
