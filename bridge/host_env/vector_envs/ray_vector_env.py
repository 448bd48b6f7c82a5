"""RayVectorEnv: Gymnasium environments in the actors of a Ray cluster, as a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from bridge.host_env.processes.worker_process import WorkerDied
from bridge.host_env.vector_infos import info_dicts
from bridge.observations import map_parts
from bridge.sb3 import AnyEnv
from jaxenvs.arguments import instance, number, positive_int


class RayVectorEnv(VectorEnv[Any, np.ndarray, np.ndarray]):
    """Vector environment whose environments run in Ray actors on many machines, some in each actor.

    Each actor is a SyncVectorEnv of Gymnasium. A step is one call of each actor, which takes milliseconds. Use it if a
    step takes some ten milliseconds, and if there are more environments than one machine has cores for. `GymVecEnv`
    presents it as a VecEnv of Stable-Baselines3, and `make_vec_env(..., backend="ray")` makes both.

    An actor that dies, with its process or its node, ends the others too, and a WorkerDied names its environments. Ray
    restarts no actor and repeats no call: environments that begin anew, or that are stepped twice, would yield
    transitions that never happened.
    """

    _actors: Sequence[Any] = ()  # until they have been started

    def __init__(
        self,
        env_fns: Sequence[Callable[[], AnyEnv]],
        envs_per_actor: int = 1,
        *,
        step_timeout: float | None = None,
        actor_options: Mapping[str, object] | None = None,
    ) -> None:
        """Start the actors, and make the environments in them.

        Args:
          env_fns: functions that make the environments; Ray sends them with cloudpickle. Modules that they refer to
            must be installed on the nodes.
          envs_per_actor: the number of environments that an actor steps, one after another.
          step_timeout: seconds that a step may take; None for any time. An actor that takes longer counts as dead.
          actor_options: options of Ray's `ActorClass.options`, such as `resources`, `runtime_env` and `num_cpus`, the
            cores that Ray reserves for an actor (1 if not given).

        Raises:
          ImportError: Ray is not installed.
          ValueError: an argument is invalid, or environments have different spaces.
          WorkerDied: an environment cannot be made.
        """
        self.num_envs = positive_int("the number of env_fns", len(env_fns))
        size = positive_int("envs_per_actor", envs_per_actor)
        if step_timeout is not None:
            number("step_timeout", step_timeout, above=0)
        options = {"num_cpus": 1, **instance("actor_options", actor_options or {}, Mapping, "a dict")}
        try:
            self._ray = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError(f'backend="ray" needs {error.name}: pip install "jaxenvs[ray]".') from error
        self._timeout = step_timeout
        actor_class = self._ray.remote(SyncVectorEnv).options(**options, max_restarts=0, max_task_retries=0)
        self._rows = [range(first, min(first + size, self.num_envs)) for first in range(0, self.num_envs, size)]
        self._actors = [
            actor_class.remote([env_fns[i] for i in rows], copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
            for rows in self._rows
        ]
        self._pending: list[object] = []
        spaces = list(zip(self.call("observation_space"), self.call("action_space")))
        if any(own != spaces[0] for own in spaces):
            self.close()
            raise ValueError(f"env_fns must make environments with the same spaces, got {spaces}.")
        self.single_observation_space, self.single_action_space = spaces[0]
        self.observation_space, self.action_space = (batch_space(space, self.num_envs) for space in spaces[0])
        self.metadata = {**self.call("metadata")[0], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = self.call("render_mode")[0]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment, with seeds that count up from an int."""
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + index for index in range(self.num_envs)]
        shares = [{"seed": [seed[i] for i in rows], "options": options} for rows in self._rows]
        observations, infos = zip(*self._get([a.reset.remote(**share) for a, share in zip(self._actors, shares)]))
        return map_parts(lambda *parts: np.concatenate(parts), *observations), self._joined(infos)

    def step_async(self, actions: np.ndarray) -> None:
        """Start a step of all environments, with actions (num_envs, ...)."""
        shares = [actions[rows.start : rows.stop] for rows in self._rows]
        self._pending = [actor.step.remote(share) for actor, share in zip(self._actors, shares)]

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Wait for the step, and return what `step` of a VectorEnv returns."""
        observations, *results, infos = zip(*self._get(self._pending, self._timeout))
        rewards, terminated, truncated = (np.concatenate(parts) for parts in results)
        observation = map_parts(lambda *parts: np.concatenate(parts), *observations)
        return observation, rewards, terminated, truncated, self._joined(infos)

    def call(self, name: str, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """Return the result of a method, or the value of an attribute, of each environment."""
        answers = self._get([actor.call.remote(name, *args, **kwargs) for actor in self._actors])
        return tuple(result for own in answers for result in own)

    get_attr = call

    def set_attr(self, name: str, values: Sequence[object]) -> None:
        """Set an attribute of each environment to its value."""
        shares = [list(values[rows.start : rows.stop]) for rows in self._rows]
        self._get([actor.set_attr.remote(name, share) for actor, share in zip(self._actors, shares)])

    def render(self) -> tuple[Any, ...]:
        """Return a picture of each environment."""
        return self.call("render")

    def close_extras(self, **kwargs: object) -> None:
        """End the actors, and with them their environments. Ray keeps running."""
        for actor in self._actors:
            if self._ray.is_initialized():  # else all actors have ended, and a call would start Ray again
                self._ray.kill(actor)

    def _get(self, calls: Sequence[object], timeout: float | None = None) -> list[Any]:
        """Return the answers to a call of each actor. If one died, end all, and raise an error that names it."""
        errors, answers = self._ray.exceptions, []
        try:
            self._ray.wait(list(calls), num_returns=len(calls), timeout=timeout)
            for call in calls:
                answers.append(self._ray.get(call, timeout=None if timeout is None else 0))
        except errors.RayError as error:
            rows = self._rows[len(answers)]
            who = f"environments {', '.join(map(str, rows))}"
            if isinstance(error, errors.RayTaskError):  # raised by an environment: after it, `reset` begins anew
                error.add_note(f"One of {who} raised this error.")
                raise
            self.close()
            late = isinstance(error, errors.GetTimeoutError)
            how = f"did not finish its step within step_timeout = {timeout} s." if late else f"died: {error}"
            raise WorkerDied(f"The actor of {who} {how}", rows, None) from error
        return answers

    def _joined(self, infos: Sequence[Mapping[str, object]]) -> dict[str, object]:
        """Return the infos of all environments, as Gymnasium batches them, from the infos of each actor."""
        joined: dict[str, object] = {}
        for rows, info in zip(self._rows, infos):
            for index, own in zip(rows, info_dicts(info, np.arange(len(rows)), len(rows)) if info else ()):
                joined = self._add_info(joined, own, index)
        return joined
