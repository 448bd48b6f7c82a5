"""The training of a model as jaxenvs.learn's, for --seeds, and what it learnt back into the model."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize, VecTransposeImage

from bridge import NotCompilable
from bridge.algorithms.off_policy import CompiledOffPolicyAlgorithm
from bridge.algorithms.on_policy import CompiledOnPolicyAlgorithm
from bridge.app.config import TrainingConfig
from bridge.app.hyperparameters import to_schedule
from bridge.engine.off_policy.plan import make_off_policy_plan
from bridge.engine.on_policy.plan import make_plan
from bridge.translate.modules import read_parameters, write_parameters
from bridge.translate.optimizers import write_optimizer
from jaxenvs.cli import UserError
from jaxenvs.learn import DQN, SAC, Moments, OffPolicySettings, Training, TrainingState

Model = CompiledOnPolicyAlgorithm | CompiledOffPolicyAlgorithm


def training_of(config: TrainingConfig, model: Model) -> Training:
    """The settings of the model, with a value of each schedule for each iteration.

    Raises:
      UserError: not everything can be compiled.
    """
    try:
        training, reasons = (_off_policy if isinstance(model, CompiledOffPolicyAlgorithm) else _on_policy)(
            config, cast(Any, model)
        )
    except NotCompilable as reason:
        raise UserError(str(reason)) from reason
    if isinstance(model.get_env(), VecTransposeImage):
        reasons = [*reasons, "The channels of its images come last."]
    if training is None or reasons:
        raise UserError(f"--seeds cannot train this in one program: {' '.join(reasons)}")
    timesteps = training.algorithm.steps_per_iteration * config.num_envs
    # SB3 looks at what remains after collecting, when it learns from it.
    remaining = 1 - timesteps * np.arange(1, training.num_iterations + 1) / config.total_timesteps
    schedules: dict[str, Any] = {}
    for name in training.algorithm.SCHEDULED:
        schedule = to_schedule(config.hyperparameters[name])
        if callable(schedule):
            schedules[name] = jnp.array([schedule(progress) for progress in remaining])
        else:
            schedules[name] = schedule
    return training.replace(**schedules)


def parameters_of(model: Model) -> Any:
    """Those with which its training begins."""
    if isinstance(model, CompiledOnPolicyAlgorithm):
        return jnp.asarray(read_parameters(model.policy.parameters()))
    learning = model.plan.learning
    assert learning is not None
    params, _, _ = learning.read()
    # The logarithm of the entropy coefficient follows from the settings.
    return {name: jnp.array(vector) for name, vector in params.items() if name != "log_ent_coef"}


def take_over(model: Model, state: TrainingState, metrics: dict[str, np.ndarray], total_timesteps: int) -> None:
    """Leave the model as its own training would have."""
    steps = int(state.iteration) * (_settings_of(model).steps_per_iteration)
    model.num_timesteps = steps * model.n_envs
    model._total_timesteps = total_timesteps
    model._current_progress_remaining = 1 - model.num_timesteps / total_timesteps
    if isinstance(model, CompiledOnPolicyAlgorithm):
        write_parameters(model.policy.parameters(), state.learner.params)
        write_optimizer(model.policy.optimizer, state.learner.optimizer_state)
        epochs = metrics.get("epochs")
        model._n_updates = int(state.iteration) if epochs is None else int(epochs.sum())
    else:
        learning = model.plan.learning
        assert learning is not None
        _, _, like = learning.read()
        # A chain of one part and the part have the same leaves.
        leaves = jax.tree.leaves(state.learner.optimizer_states)
        moments = jax.tree.unflatten(jax.tree.structure(like), leaves)
        learning.write(state.learner.params, state.learner.targets, moments)
        model._n_updates = int(state.learner.num_updates)
        model._episode_num = int(metrics["episodes"].sum()) if metrics else 0
        if isinstance(_settings_of(model), DQN):
            dqn: Any = model
            dqn._n_calls = steps
            dqn.exploration_rate = dqn.exploration_schedule(model._current_progress_remaining)
    env, normalizer = model.get_env(), state.normalizer
    if isinstance(env, VecNormalize) and normalizer is not None:
        moments, all_rms = normalizer.observation, env.obs_rms
        if isinstance(all_rms, dict):
            for name, rms in all_rms.items():
                _set(rms, moments[name])
        else:
            _set(all_rms, moments)
        _set(env.ret_rms, normalizer.reward)


def _settings_of(model: Model) -> Any:
    return model._settings()


def _on_policy(config: TrainingConfig, model: CompiledOnPolicyAlgorithm) -> tuple[Training | None, list[str]]:
    env = model.get_env()
    plan = make_plan(model.engine, model.policy, env, model.rollout_buffer)
    if plan.chain is None or plan.network is None or plan.optimizer is None:
        return None, plan.reasons
    training = Training(
        plan.chain.base.venv,
        cast(Any, plan.network),
        model._settings(),
        config.total_timesteps,
        optimizer=plan.optimizer.transformation(plan.optimizer.settings(model.policy.optimizer)),
        normalize=isinstance(env, VecNormalize),
    )
    return training, plan.reasons


def _off_policy(config: TrainingConfig, model: CompiledOffPolicyAlgorithm) -> tuple[Training | None, list[str]]:
    plan = make_off_policy_plan(model)
    if plan.chain is None:
        return None, plan.reasons
    settings: OffPolicySettings = model._settings()
    if isinstance(settings, DQN):
        names = ("exploration_fraction", "exploration_initial_eps", "exploration_final_eps")
        settings = settings.replace(**{name: config.hyperparameters[name] for name in names})
    if isinstance(settings, SAC) and settings.auto_ent_coef:
        log_ent_coef: Any = cast(Any, model).log_ent_coef
        settings = settings.replace(ent_coef=log_ent_coef.exp().item())
    name = next(iter(settings.NETWORKS))  # all are optimised alike
    optimizer = plan.optimizers[name].transformation(plan.optimizers[name].settings(plan.torch_optimizers[name]))
    training = Training(plan.chain.base.venv, plan.policy, settings, config.total_timesteps, optimizer=optimizer)
    # A store of each seed that is larger than what will ever be in it would be copied with each call for nothing.
    most = training.num_iterations * settings.steps_per_iteration * config.num_envs
    return training.replace(buffer_size=min(settings.buffer_size, most)), plan.reasons


def _set(rms: RunningMeanStd, moments: Moments) -> None:
    rms.mean, rms.var = (np.asarray(part, np.float64) for part in (moments.mean, moments.variance))
    rms.count = float(moments.count)
