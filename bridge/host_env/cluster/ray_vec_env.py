"""RayVecEnv: Gymnasium environments in the actors of a Ray cluster, as a Stable-Baselines3 VecEnv."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from bridge.errors import POLICY_IS_NAN
from bridge.host_env.cluster.rollout import LaneSteps, side_by_side
from bridge.host_env.cluster.worker_actor import WorkerActor, import_ray
from bridge.host_env.processes.lane_group import LaneStep
from bridge.host_env.processes.worker_handle import Deadline
from bridge.host_env.processes.worker_main import PRIVATE
from bridge.host_env.processes.worker_vec_env import SECONDS_TO_BEGIN, WorkerVecEnv
from jaxenvs.arguments import boolean, instance, number, positive_int, shown

# From observations of some lanes and their noise: to what acts on batches of such shapes, serialised; and to actions.
Serialised = Callable[[Any, np.ndarray], bytes]
Act = Callable[[Any, np.ndarray], np.ndarray]

# What an actor must not have, or it would be started again, outlive us, or take its calls in another order.
OURS = ("num_cpus", "max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime", "name")


class RayVecEnv(WorkerVecEnv):
    """Gymnasium environments on many machines: in actors of Ray, some in each.

    A step is one call of each actor: the actions of its lanes there, one batch of observations, rewards and flags back,
    and infos if there is something in them. That takes milliseconds, so it pays for environments that take some ten,
    and for more of them than one machine has cores for; ProcessVecEnv is faster elsewhere.

    What is returned, and what becomes of faults, is as WorkerVecEnv says. An actor dies with its process, or with its
    node; one that is started again may be so on another node, once there is one with room for it.

    Attributes:
      whole_rollouts: whether PPO and A2C may act in the actors.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        envs_per_actor: int = 1,
        *,
        num_cpus: float = 1,
        address: str | None = None,
        actor_options: Mapping[str, Any] | None = None,
        whole_rollouts: bool = False,
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
          whole_rollouts: let PPO and A2C send their policy to the actors once a rollout, and act there, where nothing
            looks at single steps: docs/cluster-environments.md. The nodes then need JAX.
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
            raise ValueError(f"actor_options may not have {', '.join(map(repr, sorted(taken)))}, got {shown(options)}.")
        self.whole_rollouts = boolean("whole_rollouts", whole_rollouts)
        self._ray = import_ray()
        if not self._ray.is_initialized():
            self._ray.init(address=address)
        self._actor_options = {**options, "num_cpus": num_cpus}
        super().__init__(env_fns, size, PRIVATE, step_timeout, on_worker_death)

    def _new_worker(self, lanes: range, env_fns: bytes) -> WorkerActor:
        return WorkerActor(lanes, env_fns, self._actor_options)

    def roll_out(
        self, program: Serialised, params: dict[str, np.ndarray], noise: np.ndarray, act: Act
    ) -> tuple[np.ndarray, list[LaneStep]]:
        """Take the steps of a rollout: each actor gets the policy, and takes all steps of its lanes before it answers.

        An actor that dies meanwhile, and is to be started again, has told nothing of its steps. So the episodes of its
        lanes are truncated in the first step, where they were before it, and the other steps are of new ones.

        Args:
          program, params: what acts in the actors.
          noise: (n_steps, num_envs, ...).
          act: what acts here, for the step in which episodes are truncated.

        Returns:
          The actions as the policy gave them, (n_steps, num_envs, ...), and the steps, for `join`.

        Raises:
          WorkerError: an environment raised, or an actor died. All are shut down.
          ValueError: what the policy computes is NaN.
        """
        self._require_state()
        policies: dict[bytes, Any] = {}

        def send(worker: WorkerActor, place: int, first: int) -> None:
            """Have an actor take the steps from this one on, after the observations in this place."""
            own = slice(worker.lanes.start, worker.lanes.stop)
            last = self._memory.copy_observations(place, own)
            serialised = program(last, noise[0, own])
            if serialised not in policies:
                policies[serialised] = self._ray.put((serialised, params))
            worker.roll_out(1 - slots[worker], policies[serialised], noise[first:, own], last)

        slots = {worker: group.slot for group in self._groups for worker in group.workers}
        workers = [worker for worker in self._open() if isinstance(worker, WorkerActor)]
        for group in self._groups:
            group.told, group.pending = None, []
        for worker in workers:
            if worker.new_infos is None:
                send(worker, slots[worker], 0)
        parts = []
        for worker in workers:
            lanes, slot, begun, cut = worker.lanes, slots[worker], None, None
            payload = b""
            if worker.new_infos is None:
                payload = self._receive(worker, 1 - slot, None, self._rollout_deadline(len(noise)))
            while worker.new_infos is not begun:  # it was started again, and has begun new episodes
                begun, own = worker.new_infos, slice(lanes.start, lanes.stop)
                action = act(self._memory.copy_observations(slot, own), noise[0, own])
                cut = LaneSteps.cut_off(self._memory, lanes, (slot, 1 - slot), action, begun or [])
                send(worker, 1 - slot, 1)
                payload = self._receive(worker, 1 - slot, None, self._rollout_deadline(len(noise)))
            told = pickle.loads(payload)
            if told is None:
                raise ValueError(POLICY_IS_NAN)
            part = LaneSteps.of_actor(worker.steps, told, lanes, self.observation_space)
            parts.append(part if cut is None else cut.then(part))
        whole = side_by_side(parts)
        for worker in workers:  # not before all have been heard: an exception leaves it to the next step
            worker.new_infos = None
        for group in self._groups:
            group.slot = 1 - group.slot
            for key, array in self._memory.observations[group.slot].items():
                array[group.lanes] = whole.rows["observations", key][-1, group.lanes]
        return whole.rows["actions"], whole.steps(self.observation_space)

    def _rollout_deadline(self, n_steps: int) -> Deadline | None:
        if self._step_timeout is None:
            return None
        # In the first rollout, JAX is imported and the program compiled.
        return Deadline.within(max(SECONDS_TO_BEGIN, self._step_timeout * n_steps), f"end {n_steps} steps within")
