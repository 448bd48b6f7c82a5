"""Collecting in two groups of lanes: while the environments of one step, the policy acts for the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from bridge.host_env.batches import concatenate, take
from bridge.host_env.cluster.ray_vec_env import RayVecEnv
from bridge.host_env.processes.lane_group import LaneGroup
from bridge.host_env.processes.process_vec_env import ProcessVecEnv
from bridge.host_env.processes.worker_vec_env import WorkerVecEnv
from bridge.translate.policies import ExportedPolicy
from bridge.vec_env.actions import as_sb3_gives

# From observations and noise to actions as they were sampled and as environments take them; and to values and
# logarithms of probabilities, if these are computed too.
Act = Callable[[Any, Any], tuple[np.ndarray, ...]]

# A step of all lanes: actions as they were sampled and as the environments got them, what else `act` gave, and what
# `VecEnv.step` returns.
Stepped = tuple[np.ndarray, np.ndarray, list[np.ndarray], VecEnvStepReturn]


class Pipeline:
    """The steps of a rollout, taken by two groups of lanes in turns.

    Each lane does what it would do if all stepped together. A step that is looked at before the next may begin, by a
    callback, overlaps in itself: the first group steps while the second acts. Otherwise the first group also acts for
    the next step, and begins it, while the second steps.

    An exception leaves steps under way, for it may have come because they do not end: the environments forget them, as
    they do that of a `step_wait` that was interrupted.
    """

    def __init__(self, env: WorkerVecEnv, noise: np.ndarray, looks_ahead: bool) -> None:
        """
        Args:
          env: of several workers.
          noise: (n_steps, num_envs, ...), of all steps of the rollout.
          looks_ahead: whether the first group may begin a step before the last has been returned.
        """
        self._env, self._noise, self._looks_ahead = env, noise, looks_ahead
        self._first, self._second = env.split()
        self._ahead: list[np.ndarray] | None = None

    def step(self, act: Act, observation: Any, step: int) -> Stepped:
        """Take a step of all lanes; these must be called in order.

        Raises:
          ValueError, WorkerError: as `act` and `WorkerVecEnv.step` do.
        """
        env, first, second = self._env, self._first, self._second
        acted = self._ahead or self._begin(act, first, take(observation, first.lanes), step)
        also_acted = self._begin(act, second, take(observation, second.lanes), step)
        stepped, self._ahead = env.step_lanes_wait(first), None
        if self._looks_ahead and step + 1 < len(self._noise):
            self._ahead = self._begin(act, first, stepped.observations, step + 1)
        actions, clipped_actions, *judged = map(concatenate, zip(acted, also_acted))
        return actions, clipped_actions, judged, env.join([stepped, env.step_lanes_wait(second)])

    def _begin(self, act: Act, group: LaneGroup, observation: Any, step: int) -> list[np.ndarray]:
        actions, to_env, *judged = act(observation, self._noise[step, group.lanes])
        clipped_actions = as_sb3_gives(to_env, self._env.action_space)
        self._env.step_lanes_async(group, clipped_actions)
        return [actions, clipped_actions, *judged]


def why_not(network: ExportedPolicy | None, acts: bool, sees_more: bool, env: VecEnv | None) -> str | None:
    """Why a Pipeline cannot step these environments with this policy; None if it can.

    Args:
      acts: whether the policy acts by a program a step; sees_more: whether it sees more than observations.
    """
    if (reason := why_not_by_lanes(network, acts, sees_more)) is not None:
        return reason
    # Exact types: a subclass, or a wrapper, may do anything in a step of all lanes.
    if not (type(env) is ProcessVecEnv or type(env) is RayVecEnv):
        return (
            f"{type(env).__name__} steps all lanes together; what does not is a ProcessVecEnv or RayVecEnv, without "
            "wrappers."
        )
    if env.num_workers < 2:
        return "All lanes are in one process."
    return None


def why_not_by_lanes(network: ExportedPolicy | None, acts: bool, sees_more: bool) -> str | None:
    """Why a policy cannot act for some lanes without the others; None if it can. Arguments are those of `why_not`."""
    if network is None or not acts:
        return "It takes acting by a program a step, in environments on the host."
    if network.exploration is not None:
        return "State-dependent exploration draws the noise of all lanes together."
    if sees_more:
        return "What is legal, or what the policy remembers, is of all lanes together."
    return None
