"""EnvPool: its ids, its spaces as Gymnasium has them, and direct calls of its steps and resets in C++."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from bridge.sb3 import Space
from jaxenvs.arguments import did_you_mean

# Seeds are int32, and environment i has the pool's seed plus i.
SEEDS = 2**31
# Options that follow from the arguments of `make_vec_env`, or that a VecEnv does not use.
NOT_OFFERED = ("num_envs", "seed", "env_seed", "env_type", "batch_size", "max_num_players", "gym_reset_return_info")
# Waits for resets, and returns the observations and infos of all environments, or only of the reset ones.
Begun = Callable[[], tuple[Any, dict[str, Any]]]


def ids() -> Collection[str]:
    """Return the ids of EnvPool, if it is installed. Importing it takes seconds."""
    found = importlib.util.find_spec("envpool")
    known: Collection[str] = () if found is None else importlib.import_module("envpool").list_all_envs()
    return known


def make(env_id: str, num_envs: int, seed: int, options: dict[str, Any]) -> Any:
    """Return an EnvPool with Gymnasium's interface, whose environment i has the seed `seed + i`.

    Raises:
      TypeError: EnvPool has no such option for this id, or does not accept its value.
      ValueError: it is a game of several players.
    """
    envpool = importlib.import_module("envpool")
    with _named(env_id, options):
        pool = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, seed=seed % (SEEDS - num_envs), **options)
    if (players := pool.config["max_num_players"]) > 1:
        raise ValueError(f"EnvPool's {env_id} has {players} players, but each environment of a VecEnv has one.")
    return pool


def spec_of(env_id: str, options: dict[str, Any]) -> Any:
    """Return EnvPool's spec of an id: `config`, `reward_threshold`, and spaces to convert with `aligned`.

    EnvPool raises errors of any kind if it does not accept the options.
    """
    with _named(env_id, options):
        return importlib.import_module("envpool").make_spec(env_id, **options)


@contextlib.contextmanager
def _named(env_id: str, options: Mapping[str, object]) -> Iterator[None]:
    """Replace EnvPool's TypeError, which names arguments of a C++ function, by one that names the option."""
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
        given_values = ", ".join(f"{name}={value!r} (default: {defaults[name]!r})" for name, value in given.items())
        raise TypeError(f"EnvPool's {env_id} does not accept {given_values}.") from error


def is_game(spec: Any) -> bool:
    """Return whether a spec is of an Atari game."""
    return "episodic_life" in spec.config._fields


def is_pool(core: object) -> bool:
    """Return whether an environment is an EnvPool."""
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(core).__mro__)


def with_seed(pool: Any, seed: int) -> Any:
    """Return a pool like this one, newly made with another seed: EnvPool accepts seeds only when it is made."""
    config = pool.spec.config._replace(seed=seed % (SEEDS - pool.num_envs), env_seed=[])
    again = type(pool)(type(pool.spec)(config))
    vars(again).update({name: value for name, value in vars(pool).items() if name.startswith("_render")})
    return again


def aligned(observation_space: Space, action_space: Space) -> tuple[Space, Space]:
    """Return EnvPool's spaces of one environment, corrected where they differ from Gymnasium's.

    EnvPool writes the smallest and the largest float where there is no bound, in Box2D the smallest positive one.
    MuJoCo's actions are float64 in EnvPool and float32 in Gymnasium, so a model trained with one would not load with
    the other; a pool accepts both.
    """
    if isinstance(action_space, spaces.Box) and action_space.dtype == np.float64:
        low, high = action_space.low.astype(np.float32), action_space.high.astype(np.float32)
        action_space = spaces.Box(low, high, dtype=np.float32)
    return _unbounded_where_meant(observation_space), action_space


def _unbounded_where_meant(space: Space) -> Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _unbounded_where_meant(part) for name, part in space.spaces.items()})
    if not isinstance(space, spaces.Box) or space.dtype is None or space.dtype.kind != "f":
        return space
    facts = np.finfo(space.dtype)
    low = np.where((space.low <= facts.min) | (space.low == facts.tiny), -np.inf, space.low)
    high = np.where(space.high >= facts.max, np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)


def counts_games(pool: Any) -> bool:
    """Return whether an Atari pool clips rewards or makes episodes of lives; then its infos have the game's own."""
    config = pool.config
    return bool(config.get("episodic_life") or config.get("reward_clip"))


class PoolCalls:
    """Steps and resets of a pool by direct calls of its C++ functions.

    A step of a few cheap environments takes less time than EnvPool's Python code around three such calls. The results
    are the same, in memory that EnvPool never writes to again.
    """

    def __init__(self, pool: Any) -> None:
        keys, self._pool = list(pool._state_keys), pool
        self._observation, self._reward, self._done, self._truncated = map(
            keys.index, ("obs", "reward", "done", "trunc")
        )
        self._info_columns = {
            name.removeprefix("info:"): at for at, name in enumerate(keys) if name.startswith("info:")
        }
        self._info_columns["elapsed_step"] = keys.index("elapsed_step")
        self._dtype = np.dtype(pool._spec._action_spec[-1][0])
        self._env_ids = np.arange(pool.num_envs, dtype=np.int32)
        shape = pool.single_action_space.shape or ()
        self._actions = self._no_actions = np.zeros((pool.num_envs, *shape), self._dtype)

    @classmethod
    def of(cls, pool: Any) -> PoolCalls | None:
        """Return the calls of a pool, or None if they cannot be used.

        They need a pool with one player and observations of one part.
        """
        state, action = getattr(pool, "_state_keys", ()), getattr(pool, "_action_keys", ())
        is_plain = "obs" in state and list(action[:2]) == ["env_id", "players.env_id"] and len(action) == 3
        return cls(pool) if is_plain and pool.config["max_num_players"] == 1 else None

    def send(self, actions: np.ndarray) -> None:
        """Start a step of all environments."""
        # Kept until the step is done, as C++ reads them in its own threads.
        self._actions = actions = np.ascontiguousarray(actions, self._dtype)
        self._pool._send([self._env_ids, self._env_ids, actions])

    def receive(self) -> tuple[Any, ...]:
        """Return observations, rewards, terminated, truncated and infos of the step."""
        state = self._pool._recv()
        done, truncated = state[self._done], state[self._truncated]
        return state[self._observation], state[self._reward], done & ~truncated, truncated, self._info(state)

    def reset(self, env_indices: np.ndarray) -> Begun:
        """Start next episodes after the previous ones ended; the returned function waits for the first observations.

        After an episode's end, a step with any action begins the next episode. EnvPool's `reset` would too, but it
        begins a new game where only a life was lost.
        """
        env_ids = env_indices.astype(np.int32)
        self._actions = self._no_actions[: len(env_ids)]
        self._pool._send([env_ids, env_ids, self._actions])
        return self._first

    def _first(self) -> tuple[object, dict[str, object]]:
        state = self._pool._recv()
        return state[self._observation], self._info(state)

    def _info(self, state: Sequence[np.ndarray]) -> dict[str, object]:
        info: dict[str, object] = {name: state[at] for name, at in self._info_columns.items()}
        info["players"] = {"env_id": info.pop("players.env_id")}
        return info
