"""Collecting where the environments are: actors of a RayVecEnv get the policy once a rollout, and act themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from bridge.engine.acting import JudgingActor
from bridge.engine.on_policy.pipelining import Act, Stepped, why_not_by_lanes
from bridge.host_env.cluster.ray_vec_env import RayVecEnv
from bridge.host_env.processes.lane_group import LaneStep
from bridge.translate.policies import ExportedPolicy


class RemoteRollout:
    """The steps of a rollout, all taken when the first is asked for. Each lane does what it would do step by step."""

    def __init__(self, env: RayVecEnv, actor: JudgingActor, noise: np.ndarray) -> None:
        """
        Args:
          actor: whose weights are those of now.
          noise: (n_steps, num_envs, ...), of all steps of the rollout.
        """
        self._env, self._actor, self._noise = env, actor, noise
        self._taken: Iterator[tuple[np.ndarray, LaneStep]] = iter(())

    def step(self, act: Act, observation: Any, step: int) -> Stepped:
        """The next step of all lanes; these must be asked for in order.

        Raises:
          ValueError, WorkerError: as RayVecEnv.roll_out.
        """
        if step == 0:
            params = {name: np.asarray(each) for name, each in self._actor.params.items()}
            rolled_out = self._env.roll_out(self._actor.exported, params, self._noise, lambda *seen: act(*seen)[0])
            self._taken = zip(*rolled_out)
        actions, lane_step = next(self._taken)
        return actions, actions, [], self._env.join([lane_step])


def why_not(network: ExportedPolicy | None, acts: bool, sees_more: bool, env: VecEnv | None) -> str | None:
    """Why the actors of these environments cannot act with this policy; None if they can.

    Args:
      acts, sees_more: as for a Pipeline.
    """
    if (reason := why_not_by_lanes(network, acts, sees_more)) is not None:
        return reason
    if type(env) is not RayVecEnv:
        return f"A {type(env).__name__} around the environments has a part in each step."
    return None
