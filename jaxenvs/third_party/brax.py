"""Adapter of brax (google/brax): rigid bodies on the physics backends of brax."""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import no_parameter, one_of
from jaxenvs.environment import TimeStep, environment
from jaxenvs.third_party.adapter import ThirdPartyEnvironment, ThirdPartyState, adapt, box, unbounded_of
from jaxenvs.third_party.library import entry_points, refuse_wrappers, require_library, shared


@environment
class BraxEnvironment(ThirdPartyEnvironment):
    """Environment of brax. It has no limit of an episode; `make` adds one of 1000 steps, as brax's training does.

    The parameter `gravity`, a vector [m/s^2], is traced; arguments of brax's class are part of the compiled function.
    """

    render_size = 240, 320

    @property
    def library_env(self) -> Any:
        """The environment object of brax, with this environment's gravity."""
        if not self.params:
            return self.source.env
        env, gravity = copy.copy(self.source.env), jnp.asarray(self.params["gravity"])
        env.sys = env.sys.tree_replace({"gravity": gravity, "opt.gravity": gravity})
        return env

    @property
    def can_render(self) -> bool:
        return hasattr(self.source.env, "sys")

    @property
    def render_fps(self) -> int:
        return round(1 / float(self.source.env.dt)) if self.can_render else 30

    def render(self, state: ThirdPartyState) -> np.ndarray:
        if not self.can_render:
            return super().render(state)
        # MuJoCo draws with OpenGL: without a display, set the environment variable MUJOCO_GL=egl or osmesa.
        height, width = self.render_size
        return np.asarray(self.source.env.render([state.inner.pipeline_state], height, width)[0])

    def _reset(self, key: jax.Array) -> tuple[Any, object]:
        first = self.source.constants
        if first is None:
            inner = self.library_env.reset(key)
        else:
            at = jax.random.randint(key, (), 0, NUM_FIRST_STATES)
            inner = jax.tree.map(lambda leaf: leaf[at], first)
        return inner, inner.obs

    def _step(self, inner: Any, action: object, key: jax.Array | None) -> tuple[Any, TimeStep]:
        # brax writes into the dicts of the state that it receives.
        before = inner.replace(metrics=dict(inner.metrics), info=dict(inner.info))
        stepped = self.library_env.step(before, action)
        inner = _hold(inner, stepped)
        truncated = jnp.asarray(inner.info.get("truncation", 0), bool)  # of an EpisodeWrapper
        terminated = jnp.asarray(inner.done, bool) & ~truncated
        return inner, TimeStep(inner.obs, inner.reward, terminated, truncated, {**inner.info, "metrics": inner.metrics})


RESETS = ("fresh", "first")
# The number of states that are kept with resets="first".
NUM_FIRST_STATES = 256

# The variables from which a step of brax starts, by backend: joints, or bodies.
POSITIONS = ("q", "qd", "x_i", "xd_i", "qpos", "qvel")


def _hold(before: Any, after: Any) -> Any:
    """Hold the bodies where they were once the episode has ended: what falls would fall until it is NaN.

    The rest of the state follows from these variables. Selecting every leaf would cost a cheap environment a tenth of
    its step.
    """
    ended = jnp.asarray(before.done, bool)
    held = {
        name: jax.tree.map(
            functools.partial(jnp.where, ended),
            getattr(before.pipeline_state, name),
            getattr(after.pipeline_state, name),
        )
        for name in POSITIONS
        if hasattr(after.pipeline_state, name)
    }
    pipeline_state = after.pipeline_state.replace(**held) if held else after.pipeline_state
    return after.replace(pipeline_state=pipeline_state, done=jnp.maximum(before.done, after.done))


@shared
def _build(name: str, resets: str = "fresh", **arguments: object) -> BraxEnvironment:
    one_of("resets", resets, RESETS)
    return from_brax(require_library("brax.envs", "brax").get_environment(name, **arguments), resets)


def _build_with(name: str, **parameters: Any) -> BraxEnvironment:
    """Create brax's environment of a name.

    Args:
      parameters: `gravity`; `resets`, as for `from_brax`; or arguments of its class, as `backend="spring"`.

    Raises:
      TypeError: the environment has no such parameter.
    """
    known = ["gravity", "resets", *inspect.signature(require_library("brax.envs", "brax")._envs[name]).parameters]
    arguments = {key: value for key, value in parameters.items() if key != "gravity"}
    for unknown in arguments.keys() - set(known) - ({"backend", "n_frames", "debug"} if "kwargs" in known else set()):
        raise TypeError(no_parameter(name, unknown, known))
    env = _build(name, **arguments)
    return env.replace(gravity=parameters["gravity"]) if "gravity" in parameters else env


make, ids = entry_points("brax", lambda: require_library("brax.envs", "brax")._envs, _build_with)


def from_brax(env: Any, resets: str = "fresh") -> BraxEnvironment:
    """Create an adapter of brax's `env`, which must not reset itself: use `brax.envs.get_environment`, not `create`.

    Args:
      env: as `brax.envs.get_environment` returns it, or in brax's `EpisodeWrapper`, whose limit truncates.
      resets: "fresh": each episode starts with brax's `reset`, which costs as much as many steps. "first": each episode
        starts from a random one of 256 states that are computed here, once. brax's own training keeps the first state
        of each environment, and starts all its episodes there.

    Raises:
      ValueError: `resets` is neither; or the environment is in another wrapper.
    """
    one_of("resets", resets, RESETS)
    refuse_wrappers(env, "brax", ["brax.envs.wrappers.training.EpisodeWrapper"])
    first = None
    if resets == "first":
        first = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), NUM_FIRST_STATES))
    started = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)))
    is_pipeline = "sys" in vars(env)  # not a wrapper of one
    return adapt(
        BraxEnvironment,
        env,
        observation_space=unbounded_of(started.obs),
        action_space=box(*_action_bounds(env.unwrapped, started), (env.action_size,), np.float32),
        params={"gravity": np.asarray(env.sys.gravity)} if is_pipeline else {},
        constants=first,
    )


def _action_bounds(env: Any, started: object) -> tuple[Any, Any]:
    """Return the bounds of the actions that brax's `step` expects, by what it sends to the actuators.

    The bounds are the range of the actuators if `step` sends them the action unchanged: physics clips it there.
    Otherwise they are -1 and 1, from which environments of brax scale, and in which brax's own training acts.

    Args:
      started: what `reset` returns, as `jax.eval_shape` describes it.
    """
    is_sent: list[bool] = []

    def step(state: object, action: object) -> Any:
        def pipeline_step(pipeline_state: Any, sent: Any) -> Any:
            is_sent.append(sent is action)
            return pipeline_state

        recorder = copy.copy(env)
        recorder.pipeline_step = pipeline_step
        return recorder.step(state, action)

    if hasattr(env, "sys"):
        jax.eval_shape(step, started, np.zeros(env.action_size, np.float32))
    if not is_sent or not all(is_sent):
        return -1, 1
    low, high = np.asarray(env.sys.actuator.ctrl_range).T
    return low, high
