"""An environment that no action changes, as one of jaxenvs and as one of Gymnasium's, so that steps can be compared."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper, VecMonitor, VecNormalize
from stable_baselines3.common.vec_env.util import dict_to_obs

from bridge import JaxVecEnv
from jaxenvs import Environment, TimeStep, environment, static, struct

LONGEST = 8  # steps of an episode
# Beyond the integers of 32 bits: the observations "large" count in these, from 4 of them on.
LARGE = 2**31
IMAGE = (1, 4, 4)


def observation_space(kind: str) -> spaces.Space[Any]:
    box, number = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(LONGEST + 1)
    goal = spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
    large, bytes_ = spaces.Box(0, 2**60, (1,), np.int64), spaces.Box(0, 255, (2,), np.uint8)
    # Not in the order of the alphabet, which is JAX's.
    return {
        "box": box,
        "discrete": number,
        "dict": spaces.Dict(OrderedDict(z=box, a=number)),
        "goal": goal,
        "large": large,
        "bytes": bytes_,
        "parts": spaces.Dict(OrderedDict(z=large, b=bytes_, a=number)),
        "image": spaces.Box(0, 255, IMAGE, np.uint8),
    }[kind]


def action_space(kind: str) -> spaces.Space[Any]:
    return {"box": spaces.Box(-1.0, 1.0, (1,), np.float32), "discrete": spaces.Discrete(2)}[kind]


def observe(kind: str, time: Any, np: Any) -> Any:
    box = np.stack([time / 8, 1 - time / 4]).astype(np.float32)
    if kind == "goal":
        return {"observation": box, "achieved_goal": box, "desired_goal": 0 * box}
    if kind in ("large", "parts"):  # NumPy's alone: JAX has no integers of 64 bits
        large = np.stack([LARGE * (4 + time)])
        return large if kind == "large" else {"z": large, "b": observe("bytes", time, np), "a": time}
    if kind == "bytes":
        return np.stack([255 - time, 30 * time]).astype(np.uint8)
    if kind == "image":
        return (np.arange(math.prod(IMAGE)).reshape(IMAGE) * (1 + time)).astype(np.uint8)
    return {"box": box, "discrete": time, "dict": {"z": box, "a": time}}[kind]


def two_observations(kind: str) -> Any:
    """Two observations, as `predict` takes them."""
    box = np.float32([[0.1, 0.2], [0.5, -0.3]])
    if kind == "box":
        return box
    if kind == "dict":
        return {"z": box, "a": np.array([1, 4])}
    each = [observe(kind, np.int64(time), np) for time in (1, 4)]
    if isinstance(each[0], dict):
        return {name: np.stack([one[name] for one in each]) for name in each[0]}
    return np.stack(each)


def compute_reward(achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
    return (abs(achieved_goal - desired_goal).sum(-1) < 0.5) * 1.0


def legal(time: Any, np: Any) -> Any:
    """Of two actions the first, which is taken where actions are certain, always; the other every second step."""
    return np.stack([time >= 0, time % 2 == 0])


@struct
class ClockState:
    time: jax.Array


@environment
class Clock(Environment[ClockState]):
    """Counts steps, and ends after `length` of them, by truncation where `truncates` is 1."""

    length: int = 5
    truncates: int = 0
    observations: str = static(default="box")
    actions: str = static(default="box")

    @property
    def observation_space(self) -> spaces.Space[Any]:
        return observation_space(self.observations)

    @property
    def action_space(self) -> spaces.Space[Any]:
        return action_space(self.actions)

    def action_masks(self, state: ClockState) -> jax.Array:
        return legal(state.time, jnp)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return compute_reward(achieved_goal, desired_goal, info)

    def reset(self, key: jax.Array) -> tuple[ClockState, TimeStep]:
        state = ClockState(jnp.zeros((), jnp.int32))
        return state, TimeStep.create(observe(self.observations, state.time, jnp))

    def step(self, state: ClockState, action: Any) -> tuple[ClockState, TimeStep]:
        time = state.time + 1
        observation, ends, truncates = observe(self.observations, time, jnp), time >= self.length, self.truncates == 1
        step = TimeStep.create(observation, (1.0 + time) / 4, terminated=ends & ~truncates, truncated=ends & truncates)
        return ClockState(time), step


class Playing:
    """An environment or a wrapper that may hold the model.

    Attributes:
      player: None, or a function that is called with "reset" or "env step" before each of them.
    """

    player: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "player"}

    def _play(self, hook: str) -> None:
        if self.player is not None:
            self.player(hook)


class GymnasiumClock(Playing, gymnasium.Env[Any, Any]):
    """The same for Gymnasium."""

    def __init__(self, length: int, truncates: int, observations: str, actions: str) -> None:
        self.length, self.truncates, self.observations = length, truncates, observations
        self.observation_space, self.action_space = observation_space(observations), action_space(actions)

    def action_masks(self) -> np.ndarray:
        return legal(np.int64(self._time), np)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return compute_reward(achieved_goal, desired_goal, info)

    def _observe(self) -> Any:
        return observe(self.observations, np.int64(self._time), np)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._play("reset")
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._play("env step")
        self._time += 1
        ends = self._time >= self.length
        return self._observe(), (1.0 + self._time) / 4, ends and not self.truncates, ends and bool(self.truncates), {}


class Aliasing(DummyVecEnv):
    """Returns the memory that it writes the next observations into."""

    def _obs_from_buf(self) -> Any:
        return dict_to_obs(self.observation_space, type(self.buf_obs)(self.buf_obs))  # whose arrays are not copied


class OwnWrapper(Playing, VecEnvWrapper):
    """A wrapper of a user's."""

    def reset(self) -> Any:
        self._play("reset")
        return self.venv.reset()

    def step_wait(self) -> Any:
        self._play("env step")
        return self.venv.step_wait()


class Hiding(VecEnvWrapper):
    """A wrapper of a user's that hides every second end of an episode, and changes rewards and infos."""

    ends = 0

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        observation, rewards, dones, infos = self.venv.step_wait()
        self.ends += int(dones.any())
        infos[0]["ends"] = self.ends
        return observation, 2 * rewards, dones & (self.ends % 2 == 1), infos


def make_env(
    kind: str, num_envs: int, length: int, truncates: int, observations: str, actions: str, wrapper: str = ""
) -> Any:
    """What a user gives to a model of either library.

    Args:
      kind: "jax": a JaxVecEnv. "gymnasium": a Gymnasium environment, or several in a DummyVecEnv.
      num_envs, length, truncates, observations, actions: of the environments.
      wrapper: "", "normalize", "monitor" or "own": in a VecNormalize, a VecMonitor or an OwnWrapper. "aliasing":
        Gymnasium's, of an Aliasing.
    """
    settings = {"length": length, "truncates": truncates, "observations": observations, "actions": actions}
    if kind == "jax":
        env: Any = JaxVecEnv(Clock(**settings), num_envs, seed=0)  # type: ignore[call-arg]
    elif num_envs == 1 and not wrapper:
        return GymnasiumClock(**settings)  # type: ignore[arg-type]
    else:
        monitored: Any = Monitor if wrapper != "monitor" else lambda env: env
        cls = Aliasing if wrapper == "aliasing" else DummyVecEnv
        env = cls([lambda: monitored(GymnasiumClock(**settings))] * num_envs)  # type: ignore[arg-type]
    wrappers = {"normalize": lambda: VecNormalize(env, gamma=0.9), "monitor": lambda: VecMonitor(env)}
    return (wrappers | {"own": lambda: OwnWrapper(env)}).get(wrapper, lambda: env)()
