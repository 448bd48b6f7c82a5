"""EnvPool: its ids, its spaces as Gymnasium has them, and its steps and resets without the Python around them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxenvs.arguments import did_you_mean

# Seeds are int32, and lane i has that of the pool plus i.
SEEDS = 2**31
# Options that follow from the arguments of `make_vec_env`, or that a VecEnv has no use for.
NOT_OFFERED = ("num_envs", "seed", "env_seed", "env_type", "batch_size", "max_num_players", "gym_reset_return_info")


def ids() -> Collection[str]:
    """The ids of an EnvPool that is installed. To ask imports it, which takes seconds."""
    found = importlib.util.find_spec("envpool")
    known: Collection[str] = () if found is None else importlib.import_module("envpool").list_all_envs()
    return known


def make(env_id: str, num_envs: int, seed: int, options: dict[str, Any]) -> Any:
    """An EnvPool with Gymnasium's interface, whose lane i has the seed `seed + i`.

    Args:
      options: of `envpool.make`.

    Raises:
      TypeError: EnvPool has no such option of this id, or does not accept what is given for it.
      ValueError: it is a game of several players.
    """
    envpool = importlib.import_module("envpool")
    with _named(env_id, options):
        pool = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, seed=seed % (SEEDS - num_envs), **options)
    if (players := pool.config["max_num_players"]) > 1:
        raise ValueError(f"EnvPool's {env_id} has {players} players, but each environment of a VecEnv has one.")
    return pool


def spec_of(env_id: str, options: dict[str, Any]) -> Any:
    """EnvPool's spec of an id: `config`, `reward_threshold` and spaces, of which `aligned` makes Gymnasium's.

    Raises:
      TypeError: as `make`.
      Exception: of whatever kind, where EnvPool does not accept the options.
    """
    with _named(env_id, options):
        return importlib.import_module("envpool").make_spec(env_id, **options)


@contextlib.contextmanager
def _named(env_id: str, options: dict[str, Any]) -> Iterator[None]:
    """Say which option it was: EnvPool's own TypeError names the arguments of a function in C++."""
    try:
        yield
    except TypeError as error:
        given = {name: value for name, value in options.items() if not name.startswith(("render_", "from_pixels"))}
        if not given:
            raise
        defaults = importlib.import_module("envpool").make_spec(env_id).config._asdict()
        offered = [name for name in defaults if name not in NOT_OFFERED]
        for name in given:
            if name not in offered:
                hint = did_you_mean(name, offered, most=1, show=repr)
                raise TypeError(
                    f"EnvPool's {env_id} has no option {name!r}. {hint}{' ' * bool(hint)}It has: {', '.join(offered)}."
                ) from error
        told = ", ".join(f"{name}={value!r} (default: {defaults[name]!r})" for name, value in given.items())
        raise TypeError(f"EnvPool's {env_id} does not accept {told}.") from error


def is_game(spec: Any) -> bool:
    """Whether a spec is of an Atari game."""
    return "episodic_life" in spec.config._fields


def is_pool(core: Any) -> bool:
    """Whether an environment is an EnvPool."""
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(core).__mro__)


def with_seed(pool: Any, seed: int) -> Any:
    """A pool like this one, which begins anew with another seed: EnvPool takes seeds only where it is made."""
    config = pool.spec.config._replace(seed=seed % (SEEDS - pool.num_envs), env_seed=[])
    again = type(pool)(type(pool.spec)(config))
    vars(again).update({name: value for name, value in vars(pool).items() if name.startswith("_render")})
    return again


def aligned(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """EnvPool's spaces of one lane, with what keeps them from being Gymnasium's put right.

    EnvPool writes the least and the largest float where there is no bound, in Box2D the least positive one. MuJoCo's
    actions are float64 with it and float32 with Gymnasium, so a model of one would not load beside the other; a pool
    takes both.
    """
    if isinstance(action_space, spaces.Box) and action_space.dtype == np.float64:
        low, high = action_space.low.astype(np.float32), action_space.high.astype(np.float32)
        action_space = spaces.Box(low, high, dtype=np.float32)
    return _unbounded_where_meant(observation_space), action_space


def _unbounded_where_meant(space: spaces.Space[Any]) -> spaces.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _unbounded_where_meant(part) for name, part in space.spaces.items()})
    if not isinstance(space, spaces.Box) or space.dtype is None or space.dtype.kind != "f":
        return space
    facts = np.finfo(space.dtype)
    low = np.where((space.low <= facts.min) | (space.low == facts.tiny), -np.inf, space.low)
    high = np.where(space.high >= facts.max, np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)


def counts_games(pool: Any) -> bool:
    """Whether rewards are clipped or lives are episodes, in Atari, whose infos have those of the game."""
    config = pool.config
    return bool(config.get("episodic_life") or config.get("reward_clip"))


class PoolCalls:
    """Steps and resets of a pool by its calls in C++.

    A step of few cheap environments takes less time than the Python that EnvPool has around three such calls. What it
    gives is the same, and in memory that EnvPool never writes to again.
    """

    def __init__(self, pool: Any) -> None:
        keys, self._pool = list(pool._state_keys), pool
        self._observation, self._reward, self._done, self._truncated = map(
            keys.index, ("obs", "reward", "done", "trunc")
        )
        self._told = {name.removeprefix("info:"): at for at, name in enumerate(keys) if name.startswith("info:")}
        self._told["elapsed_step"] = keys.index("elapsed_step")
        self._dtype = np.dtype(pool._spec._action_spec[-1][0])
        self._lanes = np.arange(pool.num_envs, dtype=np.int32)
        shape = pool.single_action_space.shape or ()
        self._actions = self._no_actions = np.zeros((pool.num_envs, *shape), self._dtype)

    @classmethod
    def of(cls, vector_env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> PoolCalls | None:
        """Those of a pool; None of what is none, is in a wrapper, or has players or observations of several parts."""
        if not is_pool(vector_env):
            return None
        state, action = getattr(vector_env, "_state_keys", ()), getattr(vector_env, "_action_keys", ())
        is_plain = "obs" in state and list(action[:2]) == ["env_id", "players.env_id"] and len(action) == 3
        return cls(vector_env) if is_plain and vector_env.config["max_num_players"] == 1 else None  # type: ignore[attr-defined]

    def send(self, actions: np.ndarray) -> None:
        """Start a step of all lanes."""
        # Kept until the step is done, as C++ reads them in threads of its own.
        self._actions = actions = np.ascontiguousarray(actions, self._dtype)
        self._pool._send([self._lanes, self._lanes, actions])

    def receive(self) -> tuple[Any, ...]:
        """Observations, rewards, terminated, truncated and infos of the step."""
        state = self._pool._recv()
        done, truncated = state[self._done], state[self._truncated]
        return state[self._observation], state[self._reward], done & ~truncated, truncated, self._info(state)

    def reset(self, lanes: np.ndarray) -> Callable[[], tuple[Any, dict[str, Any]]]:
        """Start the next episodes of lanes that ended; the function returned waits for their first observations.

        A step of a lane that ended begins its next episode, whatever the action. `reset` would too, but begins a new
        game where a life was lost.
        """
        at = lanes.astype(np.int32)
        self._actions = self._no_actions[: len(at)]
        self._pool._send([at, at, self._actions])
        return self._first

    def _first(self) -> tuple[Any, dict[str, Any]]:
        state = self._pool._recv()
        return state[self._observation], self._info(state)

    def _info(self, state: Any) -> dict[str, Any]:
        info: dict[str, Any] = {name: state[at] for name, at in self._told.items()}
        info["players"] = {"env_id": info.pop("players.env_id")}
        return info
