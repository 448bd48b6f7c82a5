"""SB3's loop on JAX environments: the draws of the compiled training, and its store, so that one seed is one run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bridge.engine.off_policy.compiled_training import rows_to_come
from bridge.engine.plan import Plan
from bridge.engine.update import read_learner
from bridge.sb3 import Infos, OffPolicy
from bridge.translate.action_noise import write_noise_state
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import OffPolicySettings
from jaxenvs.learn.interfaces import OffPolicyNetworks
from jaxenvs.learn.off_policy.driver import Progress
from jaxenvs.learn.off_policy.iteration import Noise, choose


def sample_action(algorithm: OffPolicy, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return the actions that the environments take, and those that are stored, as the compiled training acts."""
    assert plan.learner is not None
    settings = algorithm._settings_now()
    progress, action_noise, key = algorithm._progress()
    rate = algorithm._exploration_rates(np.array([algorithm._current_progress_remaining]))[0]
    params = settings.acting_params(read_learner(plan.learner, 0))
    act = _compiled_function(plan.network)
    results = act(settings, rate, params, algorithm._last_obs, action_noise, progress, key)
    action, env_action, action_noise = (None if each is None else np.array(each) for each in results)
    write_noise_state(algorithm.action_noise, action_noise)
    if plan.network.head.kind != "box":
        action = env_action = action.astype(np.int64)  # type: ignore[union-attr]
    return env_action, action  # type: ignore[return-value]


def store_transition(
    algorithm: OffPolicy, buffer: Any, action: np.ndarray, new_obs: Any, reward: np.ndarray, dones: Any, infos: Infos
) -> None:
    """Store a step where the compiled training keeps its steps."""
    buffer.to_device(algorithm._last_obs, rows_to_come(algorithm))
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
    buffer.add_on_device(algorithm._last_obs, action, reward, terminated, truncated, new_obs, last)
    algorithm._last_obs = algorithm._last_original_obs = new_obs


@functools.lru_cache(maxsize=64)
def _compiled_function(policy: OffPolicyNetworks) -> Callable[..., Any]:
    """Return the function that acts, one for each policy, because finding it by static arguments would take long."""

    def act(
        settings: OffPolicySettings,
        exploration_rate: Any,
        params: Any,
        observation: Any,
        action_noise: Any,
        progress: Progress,
        key_data: jax.Array,
    ) -> tuple[jax.Array, jax.Array, Any]:
        dtype = jax.tree.leaves(params)[0].dtype
        key = jax.random.fold_in(jax.random.wrap_key_data(key_data), progress.iteration)
        noise = Noise.draw(settings, policy, params, observation, key)
        drawn = jax.tree.map(lambda leaf: leaf[progress.step], (noise.exploration, noise.random, noise.normal))
        now = settings.with_exploration_rate(jax.numpy.asarray(exploration_rate, dtype))
        no_progress = jax.numpy.zeros((), dtype)
        action, action_noise = choose(
            now, policy, params, observation, drawn, action_noise, progress.num_timesteps, no_progress
        )
        return action, policy.to_env(action), action_noise

    return jax.jit(act, compiler_options=compiler_options())
