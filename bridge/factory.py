"""make_vec_env: Stable-Baselines3's function, for environments of every kind."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common import env_util
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

import jaxenvs
from bridge.environment_ids import (
    gymnasium_id,
    is_jax_id,
    jax_parameters,
    require_in_gymnasium,
    spec_of_jax_id,
)
from bridge.host_env import envpool
from bridge.host_env.gym_vec_env import GymVecEnv
from bridge.host_env.makers import FirstMade, env_fn, maker, require_one
from bridge.host_env.processes.process_vec_env import ProcessVecEnv
from bridge.host_env.serial_vec_env import SerialVecEnv
from bridge.host_env.vector_envs.parallel_vector_env import ParallelVectorEnv, is_parallel
from bridge.host_env.vector_envs.ray_vector_env import RayVectorEnv
from bridge.host_env.vectorized import make_vectorized
from bridge.self_play.policy_pools import SELF, with_opponent
from bridge.self_play.self_play_callback import SelfPlayCallback
from bridge.vec_env.argument_checks import vec_monitor_kwargs
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.vec_env.placement import DEVICES
from jaxenvs import Environment
from jaxenvs.arguments import instance, is_array, non_negative_int, one_of, positive_int, shown
from jaxenvs.arguments import seed as as_seed
from jaxenvs.parameters import numeric_parameter
from jaxenvs.wrappers.multi_agent.agents import vectorize

BACKENDS = ("auto", "jax", "serial", "process", "ray", "native")
PARALLEL = "parallel"  # PettingZoo's environments, for which "auto" is the only name

# Classes whose first argument is a list of functions, each of which makes one Gymnasium environment.
ONE_BY_ONE: dict[str, Callable[..., Any]] = {"serial": SerialVecEnv, "process": ProcessVecEnv, "ray": RayVectorEnv}

log = logging.getLogger("jaxenvs.sb3")


def make_vec_env(
    env_id: str | Environment[Any] | Callable[..., object],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., object] | None = None,
    env_kwargs: Mapping[str, object] | None = None,
    vec_env_cls: Callable[..., VecEnv] | None = None,
    vec_env_kwargs: Mapping[str, object] | None = None,
    monitor_kwargs: Mapping[str, object] | None = None,
    wrapper_kwargs: Mapping[str, object] | None = None,
    *,
    backend: str = "auto",
    opponent: object = None,
    device: str = "auto",
) -> VecEnv:
    """Make a monitored VecEnv of JAX or Gymnasium environments, with the arguments of SB3's `make_vec_env`.

    Args:
      env_id: an id of `jaxenvs.registered()` or of Gymnasium; a jaxenvs Environment; a class or function that makes a
        jaxenvs or Gymnasium environment; or a parallel environment of PettingZoo, or a function that makes one.
      n_envs: the number of environments. If several agents act at once in each of them, the VecEnv has as many
        sub-environments as there are agents in all of them together: see `jaxenvs.wrappers.Agents`.
      seed: environment i starts from `seed + start_index + i`.
      start_index: added to the seed, so that several VecEnvs can share one.
      monitor_dir: a folder for logs of episodes: one log of SB3's Monitor for each Gymnasium environment, which "ray"
        writes on the environment's machine; for "jax" and "native" one log of VecMonitor, `monitor.csv`.
      wrapper_class: wraps each environment: a jaxenvs Wrapper for JAX environments, a Gymnasium one for others.
      env_kwargs: keywords of `gymnasium.make`, or parameters of the JAX environment.
      vec_env_cls: a class of VecEnv, such as SB3's SubprocVecEnv: then SB3's own `make_vec_env` does everything.
      vec_env_kwargs: arguments of ProcessVecEnv, RayVectorEnv or `vec_env_cls`; or `devices`, for a JaxVecEnv.
      monitor_kwargs: arguments of Monitor; for "jax" and "native" only `info_keywords`, and Monitor's default values.
      wrapper_kwargs: arguments of `wrapper_class`.
      backend: "jax" for a JaxVecEnv, which steps all environments with one compiled function; "serial" for a
        SerialVecEnv, in this process; "process" for a ProcessVecEnv, in other processes; "ray" for a GymVecEnv of a
        RayVectorEnv, on a Ray cluster; "native" for a GymVecEnv of EnvPool, or else of a Gymnasium id's
        `vector_entry_point`. "auto" is "jax" for what jaxenvs has, and "serial" for all others; the log says which one.
        Pass "serial" if the JAX environment lacks what other arguments ask for, such as a Gymnasium wrapper.
      opponent: for a game of several players, who plays the other seats: "self", copies of the learner that a
        SelfPlayCallback makes; "random"; a zip, a model or a policy; a list of these, one of which is drawn for each
        game; or an Opponents. `wrapper_class` then wraps the game, so that all players see the same observations.
      device: for "jax" only, where the JaxVecEnv steps: "cpu", "cuda" if JAX has a GPU, or "auto", by their number.

    Raises:
      ValueError, TypeError: an argument is invalid.
      UnknownEnvironment: there is no such id.
    """
    one_of("backend", backend, BACKENDS)
    start_index = non_negative_int("start_index", start_index)
    asked = _Asked(
        env_id,
        positive_int("n_envs", n_envs),
        None if seed is None else as_seed("seed", seed) + start_index,
        start_index,
        _as_path("monitor_dir", monitor_dir),
        wrapper_class,
        _as_dict("env_kwargs", env_kwargs),
        _as_dict("vec_env_kwargs", vec_env_kwargs),
        _as_dict("monitor_kwargs", monitor_kwargs),
        _as_dict("wrapper_kwargs", wrapper_kwargs),
        opponent,
        one_of("device", device, DEVICES),
    )
    if opponent is not None and (vec_env_cls is not None or backend not in ("auto", "jax")):
        got = f"{backend=}" if vec_env_cls is None else f"vec_env_cls={shown(vec_env_cls)}"
        raise ValueError(f"opponent needs backend='jax' and no vec_env_cls, because opponents move in JAX, got {got}.")
    if vec_env_cls is not None:
        return _by_sb3(asked, backend, vec_env_cls)
    return _make(asked, backend if opponent is None else "jax")


@dataclasses.dataclass(frozen=True, eq=False)
class _Asked:
    """Checked arguments of make_vec_env, by name; but `seed` is the first environment's."""

    env_id: Any
    n_envs: int
    seed: int | None
    start_index: int
    monitor_dir: str | None
    wrapper_class: Callable[..., Any] | None
    env_kwargs: dict[str, Any]
    vec_env_kwargs: dict[str, Any]
    monitor_kwargs: dict[str, Any]
    wrapper_kwargs: dict[str, Any]
    opponent: object
    device: str

    def __post_init__(self) -> None:
        if "filename" in self.monitor_kwargs:
            raise TypeError(
                "monitor_kwargs must not contain 'filename': pass monitor_dir to say where logs are written."
            )

    @property
    def jax_env(self) -> Environment[Any]:
        """The JAX environment, in its wrapper if there is one."""
        env, wrapper_class = _make_unwrapped(self.env_id, self.env_kwargs), self.wrapper_class
        if wrapper_class is None:
            return env
        is_gymnasium = isinstance(wrapper_class, type) and issubclass(wrapper_class, gymnasium.Wrapper)
        wrapped = wrapper_class(env, **self.wrapper_kwargs) if callable(wrapper_class) and not is_gymnasium else None
        if not isinstance(wrapped, Environment):
            hint = " Gymnasium's wrappers need Gymnasium's environments: pass backend='serial'." if is_gymnasium else ""
            raise TypeError(
                f"wrapper_class must be a jaxenvs Wrapper, or return one, got {shown(wrapper_class)}.{hint}"
            )
        return wrapped


def _make(asked: _Asked, backend: str) -> VecEnv:
    """Choose a backend for "auto", and make the environments."""
    if backend == "auto" and "devices" in asked.vec_env_kwargs:
        backend = "jax"
    elif backend == "auto":
        backend, made = _choose(asked)
        name = asked.env_id if isinstance(asked.env_id, str) else shown(asked.env_id)
        _say_once(logging.INFO, f"make_vec_env({name}): {backend=}.")
        asked = dataclasses.replace(asked, env_id=made)
    if backend in ONE_BY_ONE:
        _hint(asked.env_id)
    if asked.device != "auto" and backend != "jax":
        raise ValueError(f"device is only for JAX environments, got device={asked.device!r} and {backend=}.")
    cls = ONE_BY_ONE.get(backend)
    accepted = ["devices"] * (backend == "jax") if cls is None else [*inspect.signature(cls).parameters][1:]
    if asked.vec_env_kwargs.keys() - set(accepted):
        takes = f"only {', '.join(map(repr, accepted))} in" if accepted else "no"
        raise TypeError(f"{backend=} accepts {takes} vec_env_kwargs, got {shown(asked.vec_env_kwargs)}.")
    if cls is not None:
        return _one_by_one(asked, cls)
    try:
        return _batched(asked, backend)
    except Exception as error:  # of any kind, because a wrapper may be the user's
        theirs = gymnasium_id(asked.env_id) if isinstance(asked.env_id, str) and is_jax_id(asked.env_id) else None
        if backend == "jax" and theirs in gymnasium.registry:
            error.add_note(
                f"make_vec_env({theirs!r}, ..., backend='serial') makes Gymnasium's environment instead of the JAX one."
            )
        raise


def _by_sb3(asked: _Asked, backend: str, vec_env_cls: Callable[..., VecEnv]) -> VecEnv:
    """Return the VecEnv that SB3's own `make_vec_env` makes."""
    if backend != "auto" or isinstance(asked.env_id, Environment):
        what = f"backend={backend!r}" if backend != "auto" else "a jaxenvs Environment"
        raise ValueError(f"vec_env_cls and {what} cannot be combined: pass one of them.")
    seed = None if asked.seed is None else asked.seed - asked.start_index
    arguments = {name: value for name, value in vars(asked).items() if name not in ("opponent", "device")}
    return env_util.make_vec_env(**{**arguments, "seed": seed, "vec_env_cls": vec_env_cls})


def _batched(asked: _Asked, backend: str) -> VecEnv:
    """Make environments that are stepped all at once, in a VecMonitor if one is needed."""
    monitor_kwargs = vec_monitor_kwargs(asked.monitor_kwargs)
    vec_env: VecEnv
    if backend == "jax":
        vec_env = _in_jax(asked)
    elif asked.wrapper_class is not None:
        raise TypeError(
            f"{backend=} accepts no wrapper_class for single environments, got {shown(asked.wrapper_class)}."
        )
    elif backend == PARALLEL:  # every agent is a sub-environment
        vec_env = GymVecEnv(ParallelVectorEnv([asked.env_id] * asked.n_envs))
        vec_env.seed(asked.seed)
    else:
        vec_env = make_vectorized(asked.env_id, asked.n_envs, asked.seed, asked.env_kwargs)
    return _monitored(vec_env, asked.monitor_dir, monitor_kwargs)


def _in_jax(asked: _Asked) -> JaxVecEnv:
    env = vectorize(with_opponent(asked.jax_env, asked.opponent), asked.n_envs)
    vec_env = JaxVecEnv(env, seed=asked.seed, device=asked.device, **asked.vec_env_kwargs)
    if isinstance(asked.opponent, str) and asked.opponent == SELF:
        vec_env.default_callback = SelfPlayCallback
    if isinstance(asked.env_id, str):
        vec_env.spec = spec_of_jax_id(asked.env_id, asked.env_kwargs)
    return vec_env


def _one_by_one(asked: _Asked, cls: Callable[..., Any]) -> VecEnv:
    """Make Gymnasium environments that are stepped one by one, each in its Monitor if one is needed."""
    monitor_dir, monitor_kwargs = asked.monitor_dir, asked.monitor_kwargs
    # The VecEnv counts episodes. But a wrapper may change rewards and ends, which a Monitor must see before.
    if monitor_dir is not None or monitor_kwargs or asked.wrapper_class is not None:
        monitor_kwargs = {"filename": None, **monitor_kwargs}
        if monitor_dir is not None:
            monitor_dir = os.path.abspath(monitor_dir)  # an actor may run in another folder
            os.makedirs(monitor_dir, exist_ok=True)
    env_fns = []
    for index in range(asked.n_envs):
        if monitor_dir is not None:
            monitor_kwargs = {**monitor_kwargs, "filename": os.path.join(monitor_dir, str(asked.start_index + index))}
        env_seed = None if asked.seed is None else asked.seed + index
        make = maker(asked.env_id, asked.env_kwargs)
        env_fns.append(env_fn(make, env_seed, monitor_kwargs, asked.wrapper_class, asked.wrapper_kwargs))
    host_vec_env = cls(env_fns, **asked.vec_env_kwargs)
    host_vec_env = GymVecEnv(host_vec_env) if cls is RayVectorEnv else host_vec_env
    host_vec_env.seed(asked.seed)
    return host_vec_env


def _choose(asked: _Asked) -> tuple[str, object]:
    """Return the backend of "auto"; and `env_id`, or a function that first returns the environment that it made."""
    env_id = asked.env_id
    if isinstance(env_id, str):
        if is_jax_id(env_id):
            return "jax", env_id
        require_in_gymnasium(env_id)
        return "serial", env_id
    if isinstance(env_id, Environment) or (isinstance(env_id, type) and issubclass(env_id, Environment)):
        return "jax", env_id
    if isinstance(env_id, type) and issubclass(env_id, gymnasium.Env):
        return "serial", env_id
    env = env_id(**asked.env_kwargs) if callable(env_id) else env_id
    is_several = is_parallel(env)
    if not (is_several or isinstance(env, Environment | gymnasium.Env)):
        raise TypeError(
            "env_id must be an id of jaxenvs.registered() or of Gymnasium, a jaxenvs Environment, or a class or "
            f"function that makes an environment, got {shown(env_id)}."
        )
    if not callable(env_id):
        require_one(env, asked.n_envs, asked.env_kwargs)
    made = FirstMade(env_id, env)
    if is_several:
        return PARALLEL, functools.partial(made, **asked.env_kwargs)
    return ("jax" if isinstance(env, Environment) else "serial"), made


def _make_unwrapped(env_id: object, kwargs: dict[str, Any]) -> Environment[Any]:
    if isinstance(env_id, str):
        kwargs = jax_parameters(env_id, kwargs)
        made = jaxenvs.make(env_id, **kwargs)
        for name in [name for name, value in kwargs.items() if np.ndim(value) and is_array(value)]:
            if np.ndim(numeric_parameter(jaxenvs.make(env_id), name)[1]) == 0:
                raise ValueError(
                    f"env_kwargs[{name!r}] must be one value for all environments, got the shape "
                    f"{np.shape(kwargs[name])}. To give one environment its own value, call env.set_attr({name!r}, "
                    "value, indices=[0])."
                )
        return made
    if isinstance(env_id, Environment):
        return env_id.replace(**jax_parameters(type(env_id), kwargs))
    if isinstance(env_id, type) and issubclass(env_id, Environment):
        kwargs = jax_parameters(env_id, kwargs)
    env = env_id(**kwargs) if callable(env_id) else None
    if not isinstance(env, Environment):
        raise TypeError(
            "env_id must be an id of jaxenvs.registered(), a jaxenvs Environment, or a class or function that makes "
            f"one, got {shown(env_id)}."
        )
    return env


def _monitored(vec_env: VecEnv, folder: str | None, kwargs: dict[str, Any]) -> VecEnv:
    if folder is None and not kwargs:
        return vec_env
    with warnings.catch_warnings():
        # VecMonitor warns that it overwrites the infos' `episode`, but both are the same here.
        warnings.filterwarnings("ignore", message=".*already wrapped with a `Monitor`")
        return VecMonitor(vec_env, None if folder is None else f"{folder}/monitor.csv", **kwargs)


def _hint(env_id: object) -> None:
    """Log that jaxenvs or an installed EnvPool has the environment too, if so."""
    if isinstance(env_id, str):
        names = [env_id]
    else:
        cls = env_id if isinstance(env_id, type) else type(getattr(env_id, "unwrapped", None))
        entry_points = (cls, f"{cls.__module__}:{cls.__qualname__}")
        names = [spec.id for spec in gymnasium.registry.values() if spec.entry_point in entry_points]
    if also := [name for name in names if is_jax_id(name)]:
        _say_once(
            logging.WARNING,
            f"jaxenvs also has {also[-1]}: make_vec_env({also[-1]!r}) steps it in one compiled function.",
        )
    elif isinstance(env_id, str) and log.isEnabledFor(logging.INFO):  # importing EnvPool takes seconds
        with contextlib.suppress(Exception):  # a broken EnvPool does not matter to callers without it
            known = envpool.ids()
            if env_id in known:
                how = 'pass backend="native"'
            elif env_id.replace("NoFrameskip-v4", "-v5") in known:
                how = f'call make_atari_env("{env_id}", ..., backend="native")'
            else:
                return
            _say_once(logging.INFO, f"EnvPool also has {env_id}, and steps it much faster: {how}.")


@functools.cache
def _say_once(level: int, message: str) -> None:
    log.log(level, "%s", message)


def _as_dict(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else dict(instance(name, value, Mapping, "a dict"))


def _as_path(name: str, value: Any) -> str | None:
    return None if value is None else os.fspath(instance(name, value, (str, os.PathLike), "a str"))
