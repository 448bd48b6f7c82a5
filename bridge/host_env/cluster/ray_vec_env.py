"""RayVecEnv: a Stable-Baselines3 VecEnv of Gymnasium environments in the actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from bridge.host_env.cluster.worker_actor import WorkerActor, import_ray
from bridge.host_env.processes.worker_main import PRIVATE
from bridge.host_env.processes.worker_vec_env import WorkerVecEnv
from jaxenvs.arguments import instance, number, positive_int, shown

# Options that would let Ray restart an actor, keep it alive after this process, or reorder its calls; or that have
# another argument.
OURS = ("num_cpus", "max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime", "name")


class RayVecEnv(WorkerVecEnv):
    """Vectorized environment whose Gymnasium environments run in Ray actors on many machines, some in each actor.

    A step is one call of each actor: it sends the actions of the actor's environments, and returns one batch of
    observations, rewards and flags, and the infos that are not empty. That takes milliseconds, so use it if a step
    takes some ten milliseconds, and if there are more environments than one machine has cores for; else ProcessVecEnv
    is faster.

    Results, and what happens when an environment raises or an actor dies, are as in WorkerVecEnv. An actor dies with
    its process or with its node; it may be restarted on another node, when one has free resources.
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
        """Start the actors, and make the environments in them.

        Args:
          env_fns: functions that make the environments; cloudpickle sends them, so lambdas and closures work. Modules
            that they refer to must be installed on the nodes.
          envs_per_actor: the number of environments that an actor steps, one after another.
          num_cpus: the cores that Ray reserves for an actor; 0 for environments that only wait.
          address: of the cluster, for `ray.init`: "auto" for the cluster of this machine; None for the same, or if
            there is none, a cluster of this machine alone. It has no effect if `ray.init` was called before.
          actor_options: further options of Ray's `ActorClass.options`, such as `resources`, `runtime_env`,
            `scheduling_strategy`.
          step_timeout: seconds that a step, with the resets in it, may take, as in WorkerVecEnv. An actor that takes
            longer is killed, and counts as dead. Restarting one, which includes finding a node with free resources, may
            take 60 s, or `step_timeout` if it is longer; without it, any time.
          on_worker_death: "raise" for a WorkerDied that closes this VecEnv; "restart" to start an actor that died
            again, with new episodes in its environments.

        Raises:
          ImportError: Ray is not installed.
          ConnectionError: there is no cluster at `address`.
          ValueError: an argument, or a space of the environments, is invalid.
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

    def _new_worker(self, env_indices: range, env_fns: bytes) -> WorkerActor:
        return WorkerActor(env_indices, env_fns, self._actor_options)
