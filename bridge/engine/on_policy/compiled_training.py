"""Compiled functions of PPO and A2C on JAX environments: one rollout, or several whole iterations."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from stable_baselines3.common.buffers import RolloutBuffer

from bridge.engine.learner import ExportedOptimizers, Numbers, transformations
from bridge.engine.lstm_state import read_memory
from bridge.engine.plan import Mode, Plan
from bridge.engine.rollout_buffer import write_rollout
from bridge.engine.runtime import to_host
from bridge.engine.steps import Environments, FinalState, StepBatch
from bridge.engine.update import is_large, read_learner
from bridge.sb3 import OnPolicy
from bridge.translate.policies.exported_policy import ExportedPolicy
from jaxenvs import struct
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.default_device import cached_by_device, on_device_of
from jaxenvs.environment import static
from jaxenvs.learn import CollectorState, LearnerState, OnPolicySettings, Rollout, collect
from jaxenvs.learn.devices import all_of, layout_behind, layouts, own_key, run_on
from jaxenvs.learn.learner_state import POLICY
from jaxenvs.learn.loop import run, zeros
from jaxenvs.learn.on_policy import loop as on_policy
from jaxenvs.vector import join_axes

# A call can keep what the host needs of at most this many iterations, and of at most this many steps of all
# environments together.
MOST_ITERATIONS, MOST_STEPS = 100, 16_384


@struct
class Collecting:
    """Arguments that both compiled functions share.

    Attributes:
      network: the policy, without weights.
      sde_sample_freq: for how many steps the noise of actions stays the same.
      axis_name: the axis of the devices over which environments are divided, inside a function for several devices.
      gamma, buffer_gamma, gae_lambda: as in SB3, whose buffer has its own copies, which callbacks may change.
      key: the data of a key.
    """

    network: ExportedPolicy = static()
    n_steps: int = static()
    sde_sample_freq: int = static()
    gamma: float
    buffer_gamma: float
    gae_lambda: float
    environments: Environments
    key: Any
    axis_name: str | None = static(default=None)

    @classmethod
    def of(cls, algorithm: OnPolicy, plan: Plan, buffer: RolloutBuffer) -> Collecting:
        """Return the arguments for a model and a rollout buffer, whose size and discounts are used."""
        assert plan.wrapped_env is not None
        memory = read_memory(algorithm)
        lstm_states = None if memory is None else (memory, np.asarray(algorithm._last_episode_starts, bool))
        environments = Environments.of(plan.wrapped_env, algorithm._last_obs, algorithm._masks, lstm_states)
        static_part = plan.network, buffer.buffer_size, algorithm._steps_of_same_noise()
        return cls(*static_part, algorithm.gamma, buffer.gamma, buffer.gae_lambda, environments, algorithm.key)

    def layout(self, per_env: PartitionSpec, same: PartitionSpec) -> Collecting:
        """Return how each array is divided over devices: `per_env` if it has an axis of environments, else `same`."""
        numbers: dict[str, Any] = dict.fromkeys(("gamma", "buffer_gamma", "gae_lambda", "key"), same)
        return dataclasses.replace(self, environments=self.environments.layout(per_env, same), **numbers)

    def of_one_device(self, mesh: Mesh) -> Collecting:
        """Return the part of one device, inside a function that is compiled for the devices of a mesh."""
        environments = self.environments.of_one_device(mesh)
        return dataclasses.replace(self, environments=environments, axis_name=mesh.axis_names[0])

    def rollout(
        self, params: jax.Array, start: CollectorState, key: jax.Array
    ) -> tuple[CollectorState, Rollout, StepBatch]:
        """Collect a rollout, in traced code."""
        return collect(
            self.network,
            params,
            self.environments.stepping(),
            start,
            key,
            self.n_steps,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            gae_gamma=self.buffer_gamma,
            sde_sample_freq=self.sde_sample_freq,
        )


@dataclasses.dataclass
class Collected:
    """Results of a compiled function that have not been written back yet.

    Attributes:
      final_state: the state of the environments afterwards.
      key: the data of the next key.
      rollout: the last one.
      steps: the steps of all rollouts, one after the other.
      learner: parameters and moments after the updates, if there were any; metrics: of each update, except for the
        explained variance.
    """

    final_state: FinalState
    key: np.ndarray
    rollout: Rollout
    steps: StepBatch
    learner: LearnerState | None = None
    metrics: list[dict[str, float]] = dataclasses.field(default_factory=list)


def _rollout(params: jax.Array, collecting: Collecting) -> tuple[FinalState, tuple[jax.Array, Rollout, StepBatch]]:
    key, draw = jax.random.split(jax.random.wrap_key_data(collecting.key))
    collector, rollout, steps = collecting.rollout(
        params, collecting.environments.start(), own_key(draw, collecting.axis_name)
    )
    return collecting.environments.final_state(collector), (jax.random.key_data(key), rollout, steps)


def _iterations(
    optimizers: ExportedOptimizers,
    count: jax.Array,
    settings: OnPolicySettings,
    numbers: Numbers,
    learner: LearnerState,
    collecting: Collecting,
) -> tuple[FinalState, tuple[object, ...]]:
    """Run `count` iterations, each with its settings. The results include whether each was free of NaN."""
    of_each = transformations(optimizers, numbers)
    dtype = jax.tree.leaves(learner.params)[0].dtype
    most = jax.tree.leaves(settings)[0].shape[0]

    network = collecting.network

    def iterate(carry: Any, number: jax.Array, _: None) -> tuple[Any, object]:
        now = jax.tree.map(lambda leaf: leaf[number].astype(dtype), settings)
        (learner, collector, key), _ = carry
        # An iteration uses the same keys as a rollout and an update that are compiled separately.
        key, collect_key = jax.random.split(key)
        key, update_key = jax.random.split(key)
        learner, collector, rollout, steps, metrics = on_policy.iterate(
            now, network, of_each, collecting.rollout, learner, collector, (collect_key, update_key)
        )
        metrics.pop("explained_variance")  # computed on the host, where NaN is allowed
        numbers = rollout.log_prob, learner.params[POLICY]
        is_sound = ~jnp.stack([jnp.isnan(leaf).any() for leaf in jax.tree.leaves(numbers)]).any()
        return ((learner, collector, key), rollout), (steps, metrics, all_of(is_sound, collecting.axis_name))

    state = learner, collecting.environments.start(), jax.random.wrap_key_data(collecting.key)
    rollout = zeros(jax.eval_shape(collecting.rollout, learner.params[POLICY], *state[1:])[1])
    ((learner, collector, key), rollout), kept = run(iterate, (state, rollout), count, most)
    return collecting.environments.final_state(collector), (jax.random.key_data(key), rollout, learner, kept)


@cached_by_device
def _compiled_functions(mesh: Mesh | None) -> tuple[jax.stages.Wrapped, jax.stages.Wrapped]:
    """Return the two compiled functions, of a rollout and of iterations, jitted once per process.

    JAX keeps the code for each structure of arguments, so models of one shape share it.
    """

    def rollout(params: jax.Array, collecting: Collecting) -> object:
        final_state, same, many, _ = _specs(mesh, collecting)
        return run_on(mesh, _rollout, (final_state, (same, many, many)), params, collecting)

    def iterations(optimizers: ExportedOptimizers, *given: Any) -> object:
        final_state, same, many, kept = _specs(mesh, given[-1])
        iterate = functools.partial(_iterations, optimizers)
        return run_on(mesh, iterate, (final_state, (same, many, same, (kept, same, same))), *given)

    jit = functools.partial(jax.jit, compiler_options=compiler_options())
    return jit(rollout), jit(iterations, static_argnums=(0,))


def _specs(mesh: Mesh | None, collecting: Collecting) -> tuple[object, ...]:
    """Return how results are divided over devices: final states, equal parts, steps, and steps of iterations."""
    if mesh is None:
        return (None,) * 4
    per_env, same = layouts(mesh)
    final_state = collecting.environments.layout_of_final_state(per_env, same)
    return final_state, same, layout_behind(mesh), layout_behind(mesh, 2)


@on_device_of("plan")
def run_rollout(algorithm: OnPolicy, plan: Plan, buffer: RolloutBuffer) -> Collected:
    """Run the compiled function of one rollout, without changing anything.

    If it fails or is interrupted, it has no effect.

    Raises:
      ValueError: the policy returned NaN, at which Stable-Baselines3 fails too.
    """
    collecting = Collecting.of(algorithm, plan, buffer)
    assert plan.params is not None
    assert plan.wrapped_env is not None
    final_state, results = _compiled_functions(plan.mesh)[0](plan.params.read(), collecting)
    key, rollout, steps = to_host(results)
    _require_numbers(rollout)
    plan.wrapped_env.check(steps.wrapper_outputs)
    return Collected(final_state, key, rollout, steps)


def most_iterations(algorithm: OnPolicy, plan: Plan) -> int:
    """Return how many iterations one compiled function can run; 0 if iterations cannot be combined."""
    wrapped_env, learner, buffer = plan.wrapped_env, plan.learner, algorithm.rollout_buffer
    if plan.mode is not Mode.COMPILED or plan.user_code or learner is None:
        return 0
    if wrapped_env is None or not wrapped_env.can_continue:
        return 0
    if buffer.buffer_size != algorithm.n_steps or is_large(learner, buffer, algorithm):
        return 0
    # If wrappers return floats for a space of integers, SB3's rollout buffer truncates them.
    given = jax.tree.leaves(wrapped_env.observation_structure())
    space: Any = algorithm.observation_space
    spaces = [space[name] for name in sorted(space)] if hasattr(space, "spaces") else [space]
    if not all(np.can_cast(leaf.dtype, each.dtype, "same_kind") for leaf, each in zip(given, spaces)):
        return 0
    return iterations_per_call(algorithm.n_steps, algorithm.n_envs)


def iterations_per_call(n_steps: int, num_envs: int) -> int:
    """Return how many iterations with rollouts of this size one call can run."""
    return max(1, min(MOST_ITERATIONS, MOST_STEPS // (n_steps * num_envs)))


@on_device_of("plan")
def run_iterations(algorithm: OnPolicy, plan: Plan, settings: list[OnPolicySettings]) -> Collected | None:
    """Run the compiled function of several iterations, each with its settings, without changing anything.

    Returns:
      None if something became NaN. Running iteration by iteration then shows what and when.
    """
    learner, count = plan.learner, len(settings)
    assert learner is not None
    filled = settings + settings[-1:] * (iterations_per_call(algorithm.n_steps, algorithm.n_envs) - count)
    final_state, results = _compiled_functions(plan.mesh)[1](
        tuple(learner.exported.items()),
        count,
        jax.tree.map(lambda *leaves: np.array(leaves, float), *filled),
        learner.settings(),
        read_learner(learner, algorithm._n_updates),
        Collecting.of(algorithm, plan, algorithm.rollout_buffer),
    )
    key, rollout, learnt, (steps, metrics, is_sound) = to_host(results)
    if not is_sound[:count].all():
        return None
    steps = join_axes(jax.tree.map(lambda leaf: leaf[:count], steps))
    of_each = [{name: each[i].item() for name, each in metrics.items()} for i in range(count)]
    return Collected(final_state, key, rollout, steps, learnt, of_each)


def write_back(algorithm: OnPolicy, plan: Plan, buffer: RolloutBuffer, collected: Collected) -> None:
    """Write the results of a compiled function back to the policy, the rollout buffer, the environments and the model.

    Raises:
      ValueError: weights became NaN, or the buffer has another size. Nothing has changed.
    """
    n_steps, dones = len(collected.rollout.reward), collected.steps.dones
    for _ in range(len(dones) // n_steps if algorithm.use_sde else 0):
        # So that `predict`, which draws noise in PyTorch, uses the present standard deviation.
        algorithm.policy.reset_noise(algorithm.n_envs)
    if algorithm.policy.training:
        algorithm.policy.set_training_mode(False)
    assert plan.wrapped_env is not None
    if collected.learner is not None:
        assert plan.learner is not None
        plan.learner.write_back(collected.learner.params, collected.learner.targets, collected.learner.optimizer_states)
    starts = dones[-n_steps - 1] if len(dones) > n_steps else algorithm._last_episode_starts
    write_rollout(buffer, collected.rollout, starts, dones[-n_steps:])
    collected.final_state.write_back(algorithm, plan.wrapped_env, collected.steps)
    algorithm.key = np.array(collected.key)


def _require_numbers(rollout: Rollout) -> None:
    if np.isnan(rollout.log_prob).any():
        step, index = np.argwhere(np.isnan(rollout.log_prob))[0].tolist()
        observations = jax.tree.leaves(jax.tree.map(lambda leaf: leaf[step, index], rollout.observation))
        cause = "one of its weights, or a number computed from them,"
        if any(np.issubdtype(leaf.dtype, np.floating) and np.isnan(leaf).any() for leaf in observations):
            cause = "the observation that the environment returned"
        raise ValueError(
            f"The policy's action distribution is NaN in step {step} of environment {index}, because {cause} is NaN. "
            "The rollout was discarded, and the environments are in the state from before it. Correct the environment, "
            "or load a model whose weights are finite."
        )
