"""Acting, storing and updating in SB3's loop on JAX environments, with the draws and the store of the compiled one.

A callback that needs every step therefore changes no bit of a training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bridge.engine.learner import ExportedOptimizers, Numbers, transformations
from bridge.engine.off_policy.compiled_training import make_schedule, rows_to_come
from bridge.engine.plan import Plan
from bridge.engine.runtime import to_host
from bridge.engine.update import read_learner
from bridge.replay import ReplayBuffer
from bridge.replay.waiting_steps import write
from bridge.sb3 import Infos, OffPolicy
from bridge.translate.action_noise import write_noise_state
from bridge.translate.pytorch.modules import Params
from jaxenvs import VectorEnv
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.default_device import bound, cached_by_device, here, on_device_of
from jaxenvs.learn import LearnerState, OffPolicySettings, Replay
from jaxenvs.learn.interfaces import Arrays, Observation
from jaxenvs.learn.off_policy.iteration import Iteration, Noise, choose, is_ready, num_at_once
from jaxenvs.learn.off_policy.policies import OffPolicyPolicy
from jaxenvs.learn.off_policy.store.hindsight import require_goals

# This many iterations draw their noise at once, if it takes little memory; and this many steps are stored at once.
MOST_NOISE, MOST_WAITING = 64, 64


@dataclasses.dataclass(frozen=True)
class NoiseAhead:
    """Noise of several iterations, which the compiled training draws at once, too.

    Attributes:
      drawn_for: what the noise depends on.
      first, num: the numbers of these iterations: the first one's, and how many they are.
      noise: with a leading axis of iterations.
    """

    drawn_for: tuple[object, ...]
    first: int
    num: int
    noise: Noise

    @classmethod
    def of(cls, algorithm: OffPolicy, plan: Plan, settings: OffPolicySettings, key: np.ndarray) -> NoiseAhead:
        """Return noise that includes the present iteration's, drawn only if it is not there yet."""
        kept: NoiseAhead | None = algorithm._noise_on_jax
        # Numbers among the settings change no noise, and whatever else there is belongs to the structure.
        drawn_for = plan.network, algorithm.n_envs, jax.tree.structure(settings), key.tobytes()
        if kept is None or kept.drawn_for != drawn_for or not 0 <= algorithm._iteration - kept.first < kept.num:
            assert plan.learner is not None
            draw = plan.compiled("draw", lambda: _drawing_function(plan.network))
            first = np.int32(algorithm._iteration)
            noise = draw(settings, plan.learner.acting(), algorithm._last_obs, key, first)
            kept = cls(drawn_for, int(first), len(noise.random), noise)
            algorithm._noise_on_jax = kept
        return kept


def sample_action(algorithm: OffPolicy, plan: Plan, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the actions that environments take in a `step` of the iteration, and those that are stored.

    They are those of the compiled training.
    """
    assert plan.learner is not None
    kept = algorithm._settings_on_jax
    # In the middle of an iteration, SB3's loop does not read them again either.
    settings = settings_on_device(algorithm) if step == 0 or kept is None else kept[1]
    progress, action_noise, key = algorithm._progress()
    ahead = NoiseAhead.of(algorithm, plan, settings, key)
    rate = algorithm._exploration_rates(np.array([algorithm._current_progress_remaining]))[0]
    # One array, because each that comes from the host takes 2 us.
    where = np.array([algorithm._iteration - ahead.first, step, progress.num_timesteps], np.int32)
    act = plan.compiled("act", lambda: _acting_function(plan.network))
    noise = ahead.noise.exploration, ahead.noise.random, ahead.noise.normal
    results = act(settings, rate, plan.learner.acting(), algorithm._last_obs, action_noise, noise, where)
    action, env_action = map(np.array, results[:2])
    write_noise_state(algorithm.action_noise, None if results[2] is None else np.array(results[2]))
    if plan.network.head.kind != "box":
        action = env_action = action.astype(np.int64)
    return env_action, action


def settings_on_device(algorithm: OffPolicy) -> OffPolicySettings:
    """Return the current settings as JAX arrays, made again only if they have changed: they are some twenty numbers."""
    now, kept = algorithm._settings_now(), algorithm._settings_on_jax
    # The numbers of an action noise are arrays, which have no equality.
    if kept is None or now.action_noise is not None or kept[0] != now:
        kept = now, jax.device_put(now)
        algorithm._settings_on_jax = kept
    return kept[1]


@on_device_of("plan")
def update(algorithm: OffPolicy, plan: Plan) -> tuple[dict[str, float], int]:
    """Run the update that is due, as the compiled training does before its next step, and write the results back.

    Returns:
      The metrics, and the number of updates: 0 if there is nothing to learn from yet.

    Raises:
      ValueError: parameters became NaN. The previous parameters are kept.
    """
    wrapped_env, learner, buffer = plan.wrapped_env, plan.learner, algorithm.replay_buffer
    assert wrapped_env is not None
    assert learner is not None
    settings = settings_on_device(algorithm)
    if settings.hindsight is not None:
        buffer.require_whole_episode()  # as SB3 does
    ahead = NoiseAhead.of(algorithm, plan, settings, algorithm.key)
    state = read_learner(learner, algorithm._n_updates)
    rate = make_schedule(algorithm, 0, 0, 1).learning_rate[0]
    venv = None if settings.hindsight is None else wrapped_env.base.venv  # whose reward hindsight computes
    run = plan.compiled("update", lambda: _updating_function(plan.network, tuple(learner.exported.items())))
    index = np.int32(algorithm._iteration - ahead.first)
    given = settings, rate, learner.settings(), state, venv, ahead.noise, index
    most = steps_together(algorithm)
    replay, waiting = here(buffer.to_device_with_steps(rows_to_come(algorithm), most))
    state, replay, metrics, is_ready = run(*given, replay, waiting.steps, np.int32(waiting.count))
    buffer.keep_on_device(replay)
    if not np.asarray(is_ready):
        return {}, 0
    metrics = to_host(metrics)
    learner.write_back(state.params, state.targets, state.optimizer_states)
    algorithm._n_updates = int(state.num_updates)
    return {name: value.item() for name, value in metrics.items()}, 1


@cached_by_device
def _updating_function(
    policy: OffPolicyPolicy, optimizers: ExportedOptimizers
) -> Callable[..., tuple[LearnerState, Replay, dict[str, jax.Array], jax.Array]]:
    """Return the function that updates: the same arithmetic as in `driver.run`, without steps around it."""

    def compute(
        settings: OffPolicySettings,
        learning_rate: jax.Array,
        numbers: Numbers,
        learner: LearnerState,
        venv: VectorEnv | None,
        noise: Noise,
        index: jax.Array,
        replay: Replay,
        steps: tuple[Observation, ...],
        count: jax.Array,
    ) -> tuple[LearnerState, Replay, dict[str, jax.Array], jax.Array]:
        replay = write(replay, steps, count)
        dtype = jax.tree.leaves(learner.params)[0].dtype
        compute_reward = None if venv is None else require_goals(venv.first_env)
        iteration = Iteration(policy, transformations(optimizers, numbers), None, compute_reward)  # type: ignore[arg-type]
        now, ready = settings.replace(learning_rate=jnp.asarray(learning_rate, dtype)), is_ready(settings, replay)
        learner, metrics = iteration.update(now, learner, replay, jax.tree.map(lambda leaf: leaf[index], noise), ready)
        return learner, replay, metrics, ready

    return bound(jax.jit(compute, donate_argnums=(7,), compiler_options=compiler_options()))


@cached_by_device
def _drawing_function(policy: OffPolicyPolicy) -> Callable[..., Noise]:
    """Return the function that draws the noise of several iterations."""

    def draw(
        settings: OffPolicySettings, params: Params, observation: Observation, key_data: jax.Array, first: jax.Array
    ) -> Noise:
        def one(number: jax.Array) -> Noise:
            key = jax.random.fold_in(jax.random.wrap_key_data(key_data), number)
            return Noise.draw(settings, policy, params, observation, key)

        num = num_at_once(jax.eval_shape(one, first), MOST_NOISE)
        return jax.vmap(one)(first + jnp.arange(num, dtype=jnp.int32))

    return bound(jax.jit(draw, compiler_options=compiler_options()))


def steps_together(algorithm: OffPolicy) -> int:
    """Return how many steps wait until the update writes them: an iteration's, or fewer."""
    return min(algorithm._frequency.frequency, MOST_WAITING)


@on_device_of("plan")
def store_transition(
    algorithm: OffPolicy,
    plan: Plan,
    buffer: ReplayBuffer,
    action: np.ndarray,
    new_obs: Arrays,
    reward: np.ndarray,
    dones: np.ndarray,
    infos: Infos,
) -> None:
    """Store a step where the compiled training keeps its steps."""
    if algorithm._steps_on_jax == 1 or not buffer.is_on_device:
        buffer.to_device(rows_to_come(algorithm))
    truncated = np.zeros(len(dones), bool)
    last = new_obs
    if np.any(dones):
        last = jax.tree.map(np.array, new_obs)
        for index in np.asarray(dones).nonzero()[0].tolist():
            truncated[index] = infos[index].get("TimeLimit.truncated", False)
            if (observation := infos[index].get("terminal_observation")) is not None:
                for part, value in zip(jax.tree.leaves(last), jax.tree.leaves(observation), strict=True):
                    part[index] = value
    terminated = np.asarray(dones, bool) & ~truncated
    step = algorithm._last_obs, action, reward, terminated, truncated, last
    buffer.add_on_device(steps_together(algorithm), *step)
    algorithm._last_obs = algorithm._last_original_obs = new_obs


@cached_by_device
def _acting_function(policy: OffPolicyPolicy) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array | None]]:
    """Return the function that acts, one for each policy, because finding it by static arguments would take long."""

    def act(
        settings: OffPolicySettings,
        exploration_rate: jax.Array,
        params: Params,
        observation: Observation,
        action_noise: jax.Array | None,
        noise: tuple[jax.Array, ...],
        where: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        dtype = jax.tree.leaves(params)[0].dtype
        iteration, step, num_timesteps = where
        drawn = jax.tree.map(lambda leaf: leaf[iteration, step], noise)
        now = settings.with_exploration_rate(jnp.asarray(exploration_rate, dtype))
        no_progress = jnp.zeros((), dtype)
        action, action_noise = choose(now, policy, params, observation, drawn, action_noise, num_timesteps, no_progress)
        return action, policy.to_env(action), action_noise

    return bound(jax.jit(act, compiler_options=compiler_options()))
