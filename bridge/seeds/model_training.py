"""Conversion of a model's training to a Training of jaxenvs.learn, and of the results back into the model."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from bridge.algorithms.common.epsilon_greedy import EpsilonGreedyAlgorithm
from bridge.algorithms.common.off_policy_algorithm import CompiledOffPolicyAlgorithm
from bridge.algorithms.common.on_policy_algorithm import CompiledOnPolicyAlgorithm
from bridge.algorithms.pqn import PQN
from bridge.engine.user_code.overrides import is_ours
from bridge.errors import NotCompilable
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import learn
from jaxenvs.learn import Moments, Training, TrainingState
from jaxenvs.learn.learner_state import POLICY

Model = CompiledOnPolicyAlgorithm | CompiledOffPolicyAlgorithm
# Settings of a VecNormalize with which a Training normalizes.
NORMALIZES = {
    "norm_obs": True,
    "norm_reward": True,
    "training": True,
    "clip_obs": 10.0,
    "clip_reward": 10.0,
    "epsilon": 1e-8,
}


def require_fully_compiled(model: Model) -> None:
    """Raise NotCompilable for what `learn` would do and one compiled function of a whole training cannot."""
    # Exact types: a subclass may override anything, and its methods would not be called.
    if not is_ours(type(model)):
        raise NotCompilable(
            f"{type(model).__name__} may train differently than the algorithm of jaxenvs.sb3, so it cannot be "
            "compiled as a whole."
        )
    own = [name for name in vars(model) if callable(getattr(type(model), name, None))]
    if own:
        raise NotCompilable(f"The model overrides {own[0]}, which a compiled training would not call.")
    env = model.get_env()
    if model.plan.reasons:
        raise NotCompilable(" ".join(model.plan.reasons))
    inner = env.venv if type(env) is VecNormalize else env
    if type(inner) is not JaxVecEnv:
        raise NotCompilable(
            f"A compiled training supports a JaxVecEnv, optionally wrapped in VecNormalize; got {type(inner).__name__}."
        )
    if inner.default_callback is not None:
        raise NotCompilable(
            f"{inner.default_callback.__name__} runs between rollouts, and a compiled training does not stop for it: "
            "use learn, or jaxenvs.learn.self_play."
        )
    if type(env) is VecNormalize:
        _require_known_normalization(env, model.gamma)


def training_of(model: Model, total_timesteps: int) -> Training:
    """Return a model's training as a Training, with a value of each schedule for each iteration."""
    require_fully_compiled(model)
    make: Any = _off_policy if isinstance(model, CompiledOffPolicyAlgorithm) else _on_policy
    training: Training = make(model, total_timesteps)
    timesteps = training.algorithm.steps_per_iteration * model.n_envs
    # SB3 computes the remaining progress after collecting, before it learns. The last iteration may exceed the budget;
    # a schedule that falls to 0 must not become negative there.
    remaining = np.maximum(1 - timesteps * np.arange(1, training.num_iterations + 1) / total_timesteps, 0)
    return training.replace(**{name: _values(model, name, remaining) for name in training.algorithm.SCHEDULED})


def parameters_of(model: Model) -> Any:
    """Return the parameters with which the model's training begins."""
    learner = model.plan.learner
    assert learner is not None
    # In one piece, because checkpoints have the layout, and the device on which they are loaded may be another.
    params, targets, _ = learner.vectors(split=False)
    if isinstance(model, CompiledOnPolicyAlgorithm):
        return jnp.array(params[POLICY])
    # The Training itself creates the logarithm of the entropy coefficient and the targets, except for running
    # statistics.
    own = {name: vector for name, vector in params.items() if name != "log_ent_coef"}
    own |= {name: targets[name] for name in model._settings_now().STATISTICS if name in targets}
    return {name: jnp.array(vector) for name, vector in own.items()}


def take_over(model: Model, state: TrainingState, metrics: dict[str, np.ndarray], total_timesteps: int) -> None:
    """Set the model's weights, statistics and counts as its own training would have."""
    steps = int(state.iteration) * model._settings_now().steps_per_iteration
    model.num_timesteps = steps * model.n_envs
    model._total_timesteps = total_timesteps
    model._current_progress_remaining = 1 - model.num_timesteps / total_timesteps
    model._n_updates = int(state.learner.num_updates)
    learner = model.plan.learner
    assert learner is not None
    _, _, like = learner.vectors(split=False)
    # An optax chain of one part and the part itself have the same leaves.
    moments = jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(state.learner.optimizer_states))
    learner.write_back(state.learner.params, state.learner.targets, moments)
    if isinstance(model, PQN):
        model._set_exploration_rate()
    if isinstance(model, CompiledOffPolicyAlgorithm):
        model._episode_num = int(metrics["episodes"].sum()) if metrics else 0
        if isinstance(model, EpsilonGreedyAlgorithm):
            model._n_calls = steps
            model.exploration_rate = model.exploration_schedule(model._current_progress_remaining)
    model.metrics = metrics
    env, normalizer = model.get_env(), state.normalizer
    if isinstance(env, VecNormalize) and normalizer is not None:
        moments, all_rms = normalizer.observation, env.obs_rms
        if isinstance(all_rms, dict):
            for name, rms in all_rms.items():
                _set(rms, moments[name])
        else:
            _set(all_rms, moments)
        _set(env.ret_rms, normalizer.reward)


def _on_policy(model: CompiledOnPolicyAlgorithm, total_timesteps: int) -> Training:
    plan = model.plan
    assert plan.wrapped_env is not None
    assert plan.learner is not None
    return Training(
        plan.wrapped_env.base.venv,
        cast(Any, plan.network),
        model._settings_now(),
        total_timesteps,
        optimizer=plan.learner.exported[POLICY].transformation(plan.learner.settings()[POLICY]),
        normalize=isinstance(model.get_env(), VecNormalize),
    )


def _off_policy(model: CompiledOffPolicyAlgorithm, total_timesteps: int) -> Training:
    plan, settings = model.plan, model._settings_now()
    assert plan.wrapped_env is not None
    assert plan.learner is not None
    if isinstance(settings, learn.DQN):
        names = ("exploration_fraction", "exploration_initial_eps", "exploration_final_eps")
        settings = settings.replace(**{name: getattr(model, name) for name in names})
    if isinstance(settings, learn.SAC) and settings.auto_ent_coef:
        settings = settings.replace(ent_coef=vars(model)["log_ent_coef"].exp().item())
    name = next(iter(settings.NETWORKS))  # all have the same optimizer
    optimizer = plan.learner.exported[name].transformation(plan.learner.settings()[name])
    training = Training(plan.wrapped_env.base.venv, plan.network, settings, total_timesteps, optimizer=optimizer)
    # A store with space that is never used would be copied at each call for nothing, for each seed.
    most = training.num_iterations * settings.steps_per_iteration * model.n_envs
    return training.replace(buffer_size=min(settings.buffer_size, most))


def _values(model: Model, name: str, remaining: np.ndarray) -> Any:
    """Return the values of a setting that may be a schedule, at the progress of each iteration.

    If all are equal, only one is returned.
    """
    if name == "learning_rate" and not callable(model.learning_rate):
        return model.learning_rate
    attributes = {"learning_rate": "lr_schedule", "exploration_rate": "exploration_schedule"}
    schedule = getattr(model, attributes.get(name, name))
    if name == "exploration_rate":  # a rollout explores as the schedule says after the one before it
        remaining = np.append(1.0, remaining[:-1])
    if schedule is None:
        return None
    values = [float(schedule(progress)) for progress in remaining]
    return values[0] if len(set(values)) == 1 else jnp.array(values)


def _require_known_normalization(env: VecNormalize, gamma: float) -> None:
    expected = {**NORMALIZES, "gamma": gamma}
    other = [f"{name}={getattr(env, name)!r}" for name, value in expected.items() if getattr(env, name) != value]
    if not other:  # else there may be no `obs_rms`
        by_key = env.obs_rms if isinstance(env.obs_rms, dict) else {}
        if by_key and set(by_key) != set(getattr(env.observation_space, "spaces", ())):
            other.append(f"norm_obs_keys={list(by_key)!r}")
        if any(each.count != RunningMeanStd().count for each in (*(by_key.values() or [env.obs_rms]), env.ret_rms)):
            other.append("statistics of earlier steps")
    if other:
        raise NotCompilable(f"A compiled training does not support a VecNormalize with {', '.join(other)}.")


def _set(rms: RunningMeanStd, moments: Moments) -> None:
    rms.mean, rms.var = (np.asarray(part, np.float64) for part in (moments.mean, moments.variance))
    rms.count = float(moments.count)
