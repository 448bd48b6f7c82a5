"""RayVecEnv: Gymnasium environments in the actors of a Ray cluster, as a Stable-Baselines3 VecEnv."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from bridge.host_env.cluster.worker_actor import WorkerActor, import_ray
from bridge.host_env.processes.worker_main import PRIVATE
from bridge.host_env.processes.worker_vec_env import WorkerVecEnv
from jaxenvs.arguments import instance, number, positive_int, shown

# What an actor must not have, or it would be started again, outlive us, or take its calls in another order.
OURS = ("num_cpus", "max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime", "name")


class RayVecEnv(WorkerVecEnv):
    """Gymnasium environments on many machines: in actors of Ray, some in each.

    A step is one call of each actor: the actions of its lanes there, one batch of observations, rewards and flags back,
    and infos if there is something in them. That takes milliseconds, so it pays for environments that take some ten,
    and for more of them than one machine has cores for; ProcessVecEnv is faster elsewhere.

    What is returned, and what becomes of faults, is as WorkerVecEnv says. An actor dies with its process, or with its
    node; one that is started again may be so on another node, once there is one with room for it.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        envs_per_actor: int = 1,
        *,
        num_cpus: float = 1,
        address: str | None = None,
        actor_options: Mapping[str, Any] | None = None,
        step_timeout: float | None = None,
        on_worker_death: str = "raise",
    ) -> None:
        """
        Args:
          env_fns: functions that make the environments; sent by cloudpickle, so lambdas and closures will do. Modules
            that they name must be on the nodes.
          envs_per_actor: how many environments, one after another, an actor steps.
          num_cpus: the cores that Ray reserves for an actor; 0 for environments that only wait.
          address: of the cluster, for `ray.init`: "auto" for the one that this machine is of; None for that, or if
            there is none, one on this machine alone. Of no meaning if `ray.init` was called before.
          actor_options: further ones of Ray's `ActorClass.options`, as `resources`, `runtime_env`,
            `scheduling_strategy`.
          step_timeout, on_worker_death: as of WorkerVecEnv. An actor that is started again has to find a node with
            room, within the time that a `step_timeout` gives that; without one it waits as long as it takes.

        Raises:
          ImportError: Ray is not installed.
          ConnectionError: there is no cluster at `address`.
          ValueError: an argument, or a space of the environments, is not what it must be.
          WorkerError: an environment cannot be made.
        """
        size = positive_int("envs_per_actor", envs_per_actor)
        number("num_cpus", num_cpus, least=0)
        options = dict(instance("actor_options", actor_options or {}, Mapping, "a dict"))
        if taken := options.keys() & set(OURS):
            raise ValueError(
                f"actor_options must not contain {', '.join(map(repr, sorted(taken)))}, got {shown(options)}."
            )
        self._ray = import_ray()
        if not self._ray.is_initialized():
            self._ray.init(address=address)
        self._actor_options = {**options, "num_cpus": num_cpus}
        super().__init__(env_fns, size, PRIVATE, step_timeout, on_worker_death)

    def _new_worker(self, lanes: range, env_fns: bytes) -> WorkerActor:
        return WorkerActor(lanes, env_fns, self._actor_options)
