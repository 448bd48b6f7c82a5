"""Run SB3's own loop of collecting, with its Python and its locals, and with compiled acting.

    obs_tensor = obs_as_tensor(self._last_obs, ...)      arms: policy.forward is ours, for the very next call
    ... = self.policy(obs_tensor)                        ours disarms, and acts in one compiled function
    env.step(...), callback.on_step(), ...               nothing is set on the policy

SB3's function runs with its own code, in which two global functions are ours: the one that it calls right before the
policy, to arm it there, and `get_action_masks`, which MaskablePPO calls in between.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from bridge.engine.acting import Actor, NoiseSource
from bridge.engine.lstm_state import Memory, of_states, to_states
from bridge.engine.on_policy.jax_rollout import OnJax
from bridge.engine.plan import Mode, Plan
from bridge.engine.session import Session
from bridge.sb3 import OnPolicy
from bridge.vec_env.actions import as_sb3_gives
from jaxenvs.learn import Masked, Recalled

ARM_AT, MASKS_AT = "obs_as_tensor", "get_action_masks"


def collect_rollouts(
    sb3s: Callable[..., bool],
    algorithm: OnPolicy,
    session: Session,
    env: VecEnv,
    callback: BaseCallback,
    buffer: RolloutBuffer,
    n_steps: int,
    *further: object,
) -> bool:
    """Run SB3's `collect_rollouts`, as far as possible with compiled acting.

    Args:
      sb3s: the bound method of SB3 or sb3-contrib; the last arguments are its.
    """
    plan = session.current_plan(algorithm, env)
    function = getattr(sb3s, "__func__", None)
    can_arm = isinstance(function, types.FunctionType) and ARM_AT in function.__code__.co_names
    # In an environment that is not compiled, PyTorch draws the noise of state-dependent exploration.
    on_jax = OnJax(algorithm, plan, n_steps, callback) if plan.mode is Mode.COMPILED else None
    if not can_arm or plan.network is None or (on_jax is None and algorithm.use_sde):
        with session.sb3s_loop():
            return sb3s(env, callback, buffer, n_steps, *further)
    assert isinstance(function, types.FunctionType)
    acting = _Acting(algorithm, plan, env, buffer, n_steps, on_jax)
    algorithm._on_jax = on_jax
    arming = {ARM_AT: acting.obs_as_tensor(function.__globals__[ARM_AT])}
    if any(further):
        arming[MASKS_AT] = acting.get_action_masks(function.__globals__[MASKS_AT])
    own = types.FunctionType(
        function.__code__, {**function.__globals__, **arming}, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    try:
        with session.sb3s_loop():
            return bool(own(algorithm, env, callback, buffer, n_steps, *further))
    finally:
        acting.disarm()
        algorithm._on_jax = None


class _Acting:
    """Compiled acting in place of the calls of a policy's `forward` by SB3's loop."""

    def __init__(
        self, algorithm: OnPolicy, plan: Plan, env: VecEnv, buffer: RolloutBuffer, n_steps: int, on_jax: OnJax | None
    ) -> None:
        self._algorithm, self._plan, self._env, self._buffer, self._on_jax = algorithm, plan, env, buffer, on_jax
        self._left, self._masks_follow = n_steps, False
        self._armed: object = None
        # What acts in environments of either kind, whose noise is drawn step by step, as by SB3.
        assert plan.params is not None
        tensors = plan.params.tensors
        self._actor: Actor = plan.actor or plan.compiled("actor", lambda: Actor(plan.network, tensors))
        self._draw = NoiseSource(plan.network)

    def obs_as_tensor(self, sb3s: Callable[..., object]) -> Callable[..., object]:
        """Return SB3's function, after which the next call of the policy is ours."""

        def obs_as_tensor(obs: object, device: torch.device) -> object:
            tensors = sb3s(obs, device)
            if self._left > 0:  # not for the values after the last step
                self._left -= 1
                if self._on_jax is not None:
                    self._on_jax.step += 1
                self._armed = tensors
                if not self._masks_follow:
                    self._arm()
            elif self._on_jax is not None:
                self._finish_next(self._on_jax)
            return tensors

        return obs_as_tensor

    def _finish_next(self, on_jax: OnJax) -> None:
        """Let the buffer's next call compute returns as the compiled rollout does, before `on_rollout_end`."""
        buffer = self._buffer

        def compute_returns_and_advantage(*arguments: Any, **further: Any) -> None:
            del vars(buffer)["compute_returns_and_advantage"]
            buffer.compute_returns_and_advantage(*arguments, **further)
            on_jax.finish(buffer)

        vars(buffer)["compute_returns_and_advantage"] = compute_returns_and_advantage

    def get_action_masks(self, sb3s: Callable[[VecEnv], np.ndarray]) -> Callable[[VecEnv], np.ndarray]:
        """Return sb3-contrib's function, which runs code of the environments, so that it arms only afterwards."""
        self._masks_follow = True

        def get_action_masks(env: VecEnv) -> np.ndarray:
            masks = sb3s(env)
            self._arm()
            return masks

        return get_action_masks

    def _arm(self) -> None:
        policy = self._algorithm.policy
        # Else PyTorch acts, which takes less time than to copy the weights in each step.
        if self._plan.acts_as_planned(policy) and (self._on_jax is not None or not self._actor.copies):
            vars(policy)["forward"] = self._forward

    def disarm(self) -> None:
        """Remove what is set on the policy, if it is."""
        if vars(self._algorithm.policy).get("forward") == self._forward:
            del vars(self._algorithm.policy)["forward"]

    def _forward(self, obs: object, *arguments: Any, **further: object) -> object:
        policy = self._algorithm.policy
        if obs is not self._armed or torch.is_grad_enabled() or arguments[2:] or further.get("deterministic"):
            return type(policy).forward(policy, obs, *arguments, **further)
        self.disarm()
        self._armed = None
        observation = self._algorithm._last_obs
        if (masks := further.get("action_masks")) is not None:
            observation = Masked(observation, np.asarray(masks).reshape(self._env.num_envs, -1))
        if arguments:
            starts = np.asarray(arguments[1].cpu()) != 0
            observation = Recalled(observation, of_states(arguments[0]), starts)
        self._actor.refresh()
        noise = self._draw(self._env.num_envs) if self._on_jax is None else self._on_jax.noise()
        action, to_env, value, log_prob, *memory = self._actor.act_and_evaluate(observation, noise)
        if self._on_jax is not None:
            self._on_jax.acted(value)
        is_box = isinstance(self._algorithm.action_space, spaces.Box)
        return self._as_tensors(action if is_box else to_env, value, log_prob, memory)

    def _as_tensors(self, action: np.ndarray, value: np.ndarray, log_prob: np.ndarray, memory: list[Memory]) -> object:
        """Return what SB3's `forward` returns."""
        space, device = self._algorithm.action_space, self._algorithm.device
        if isinstance(space, spaces.Box):
            action = np.array(action).reshape(-1, *space.shape)
        else:
            action = as_sb3_gives(action, space)
        results = (action, np.array(value)[:, None], np.array(log_prob))
        tensors = [torch.from_numpy(each).to(device) for each in results]
        return (*tensors, *(to_states(self._algorithm, each) for each in memory))
