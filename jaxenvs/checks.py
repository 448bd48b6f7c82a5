"""Checks of the contract of environments: check_env takes steps, require_contract only traces."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import integer, is_array, non_negative_int, positive_int, type_name
from jaxenvs.arrays import is_key
from jaxenvs.environment import Environment, TimeStep, Wrapper, require_environment
from jaxenvs.jax_names import config, is_traced
from jaxenvs.spaces import struct_of

# --- By tracing -----------------------------------------------------------------------------------------------------


def require_contract(env: Environment[Any], env_axis: int | None = None) -> None:
    """Raise if `env` breaks a part of the contract of `Environment` that can be checked without running it.

    The checks are: `env` is a pytree whose parameters can be traced; `reset` and `step` return (state, TimeStep) of the
    same structure, shapes, dtypes and weak types; the flags are bool () and the reward a float (); observations have
    the structure and shapes of their space. Nothing is compiled, and environments that differ only in the values of
    their parameters are checked once.

    Args:
      env_axis: 0 if every parameter has a leading axis, for a batch of environments.
    """
    require_environment("env", env)
    leaves = jax.tree.leaves(env)
    if any(is_traced(leaf) or isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        return  # in traced code, where spaces cannot be computed
    kind = _kind(env, env_axis)
    if kind in _kept:
        return
    one = env if env_axis is None else jax.tree.map(_first, env)
    try:
        found = _require_contract(one)
    except Exception as error:
        if isinstance(one, Wrapper):
            require_contract(one.env)  # if the inner environment is wrong, its name is more helpful
        if num_agents := num_agents_of(one):
            raise ValueError(
                f"{error} {type(one).__name__} has num_agents = {num_agents}: if these agents act at once, make a "
                "jaxenvs.wrappers.Agents of it instead of a VectorEnv."
            ) from error
        raise
    _remember(_kept, kind, None)
    _remember(_known_spaces, _without_types(kind), found)


def num_agents_of(env: Environment[Any]) -> int | None:
    """Return how many agents act at once in an environment, its attribute `num_agents`; None for one agent."""
    try:
        return integer("env.num_agents", env.parameter("num_agents"), 1)
    except AttributeError:
        return None


def _require_contract(env: Environment[Any]) -> _Spaces:
    """Return the spaces of an environment that keeps the contract; else raise."""
    observation_space, action_space = _spaces(jax.tree.map(_on_host, env))
    action = struct_of(action_space)
    started, stepped = _trace(env, action)
    _require_timestep(started[1], observation_space)
    _require_same("step", started, stepped)
    return observation_space, action_space


def _first(leaf: Any) -> Any:
    return leaf[0] if is_key(leaf) else np.asarray(leaf)[0]


def _on_host(leaf: object) -> Any:
    """Convert a parameter to what code of spaces expects: a Python number, or a NumPy array."""
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic) or is_traced(leaf) or is_key(leaf):
        return leaf
    return np.asarray(leaf) if leaf.ndim else leaf.item()


class _Kind(NamedTuple):
    """Key of environments that behave alike while they are traced."""

    structure: jax.tree_util.PyTreeDef
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[tuple[np.dtype[Any], bool], ...]
    x64: bool


def _kind(env: Environment[Any], env_axis: int | None) -> _Kind:
    leaves, structure = jax.tree.flatten(env)
    avals = [jax.typeof(leaf) for leaf in leaves]
    return _Kind(
        structure=structure,
        shapes=tuple(aval.shape if env_axis is None else aval.shape[1:] for aval in avals),
        types=tuple((aval.dtype, aval.weak_type) for aval in avals),
        x64=config.jax_enable_x64,
    )


def _without_types(kind: _Kind) -> _Kind:
    return kind._replace(types=())


_Spaces = tuple[gymnasium.Space[object], gymnasium.Space[object]]
Kept = TypeVar("Kept")

MAX_KEPT = 256
_kept: dict[_Kind, None] = {}  # the kinds that keep the contract
_known_spaces: dict[_Kind, _Spaces] = {}  # the spaces of the first environment of each kind


def _remember(memory: dict[_Kind, Kept], kind: _Kind, value: Kept) -> None:
    if len(memory) >= MAX_KEPT:
        del memory[next(iter(memory))]
    memory[kind] = value


def action_struct(env: Environment[Any], env_axis: int | None = None) -> Any:
    """Return the struct of an action: a `jax.ShapeDtypeStruct`, or a dict or tuple of them. For traced code.

    Returns:
      None where it is unknown; see `spaces_in_traced_code`.
    """
    known = spaces_in_traced_code(env, env_axis)
    return None if known is None else struct_of(known[1])


def spaces_in_traced_code(env: Environment[Any], env_axis: int | None = None) -> _Spaces | None:
    """Return the observation space and the action space of some environment of the same kind.

    In traced code spaces cannot be computed, but their structure, shapes and dtypes, and the sizes of spaces that are
    not Boxes, do not depend on traced values. The bounds of a Box may differ from the bounds for `env`.

    Returns:
      None where they are unknown: no environment of this kind was ever created outside of traced code.
    """
    kind = _kind(env, env_axis)
    known = _without_types(kind)  # tracers may have lost the types
    if known not in _known_spaces:
        found = _spaces_of_all(1, kind)
        if found is None:
            return None
        _remember(_known_spaces, known, found)
    return _known_spaces[known]


def possible_observation_spaces(env: Environment[Any]) -> list[gymnasium.Space[object]]:
    """Return the observation space of `env`; if it depends on traced values, the spaces of two of its kind.

    Returns:
      An empty list where they are unknown.
    """
    try:
        return [_spaces(jax.tree.map(_on_host, env))[0]]
    except Exception:  # as above
        found = (_spaces_of_all(number, _kind(env, None)) for number in (1, 2))
        return [one[0] for one in found if one is not None]


def _spaces_of_all(number: int, kind: _Kind) -> _Spaces | None:
    """Return the spaces of the environment of a kind whose parameters all equal `number`, if there are any."""
    try:
        leaves = [np.full(shape, number, dtype) for shape, (dtype, _) in zip(kind.shapes, kind.types, strict=True)]
        return _spaces(jax.tree.unflatten(kind.structure, map(_on_host, leaves)))
    except Exception:  # user code, which was never promised to run here
        return None


def _spaces(env: Environment[Any]) -> _Spaces:
    found = []
    for name in ("observation_space", "action_space"):
        try:
            with jax.ensure_compile_time_eval():
                space = getattr(env, name)
        except NotImplementedError:
            raise
        except Exception as error:
            raise ValueError(f"{type(env).__name__}.{name} fails with these parameters, {env}: {error}") from error
        if not isinstance(space, gymnasium.Space):
            hint = " Make it a property." if callable(space) else ""
            raise TypeError(f"{type(env).__name__}.{name} must be a gymnasium.Space, got {type(space).__name__}.{hint}")
        struct_of(space, f"{type(env).__name__}.{name}")
        found.append(space)
    return found[0], found[1]


def _trace(env: Environment[Any], action: object) -> tuple[Any, Any]:
    """Trace `reset`, and a step after it; return (state, timestep) of `jax.ShapeDtypeStruct` for each."""

    numbers: list[str] = []  # of Python, in the state of reset, while step runs

    def episode(env: Environment[Any], key: jax.Array, action: object) -> Any:
        started = _require_pair("reset", env.reset(key))
        numbers[:] = _python_numbers("state", started[0])
        stepped = env.step(started[0], action)
        numbers.clear()
        return started, _require_pair("step", stepped)

    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        found: tuple[Any, Any] = jax.eval_shape(episode, env, key, action)
    except Exception as error:
        name = type(env.unwrapped).__name__
        try:
            jax.eval_shape(lambda key, action: episode(env, key, action), key, action)
        except Exception:
            if not isinstance(error, jax.errors.JAXTypeError) and "Tracer" not in str(error):
                if not numbers:
                    raise error from None
                raise TypeError(
                    f"{name}.step fails with the state that reset returned, {type(error).__name__}: {error}. In that "
                    f"state, {numbers[0]} is a Python number: {name}.reset must return an array there, such as "
                    "jnp.asarray(...)."
                ) from error
            raise TypeError(
                f"{name}.reset and step must not read the values of the state, the action or the key, which are "
                "traced: choose with jnp.where or jax.lax.cond, and convert with jnp.asarray."
            ) from error
        # It works with numbers instead of tracers.
        names = ", ".join(jax.tree_util.keystr(path)[1:] for path, _ in jax.tree_util.tree_leaves_with_path(env))
        raise TypeError(
            f"{name}.reset and step must not read the values of parameters, which are data and traced: {names}. Mark "
            "a parameter that chooses a code path or a shape as static, such as `size: int = static(default=3)`."
        ) from error
    return found


def _python_numbers(part: str, tree: object) -> list[str]:
    """Return the paths and values of the leaves that are numbers of Python."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [f"{part}{jax.tree_util.keystr(path)} = {leaf}" for path, leaf in leaves if isinstance(leaf, int | float)]


def _require_pair(function: str, returned: object) -> tuple[Any, TimeStep]:
    """Return the result of a function, if it is (state, TimeStep), of arrays."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        got = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type_name(returned)
        raise TypeError(f"{function} must return (state, TimeStep), got {got}.")
    if not isinstance(returned[1], TimeStep):
        raise TypeError(
            f"{function} must return (state, TimeStep), got {type_name(returned[1])} in place of the TimeStep."
        )
    for part, tree in zip(("state", "timestep"), returned, strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not is_array(leaf):
                kind = type(leaf)
                own = (
                    ""
                    if kind.__module__ in ("builtins", "numpy")
                    else f" If {kind.__name__} is yours, make it a @struct."
                )
                raise TypeError(
                    f"{function} must return arrays and pytrees of arrays, but {part}{jax.tree_util.keystr(path)} is "
                    f"of type {kind.__name__}.{own}"
                )
    return returned


def _require_timestep(timestep: TimeStep, observation_space: gymnasium.Space[object]) -> None:
    for name, dtype in (("reward", jnp.result_type(float)), ("terminated", bool), ("truncated", bool)):
        value = getattr(timestep, name)
        if not hasattr(value, "shape") or value.shape != () or value.dtype != dtype:
            raise TypeError(
                f"{name} must be {jnp.dtype(dtype)} with shape (), got {_describe_tree(value)}. TimeStep.create "
                "converts it."
            )
    if not isinstance(timestep.info, dict):
        raise TypeError(f"info must be a dict, got {type(timestep.info).__name__}.")
    expected = jax.tree.map(lambda leaf: leaf.shape, struct_of(observation_space))
    if jax.tree.map(lambda leaf: leaf.shape, timestep.observation) != expected:
        raise ValueError(
            f"The observation must fit observation_space = {observation_space}, got "
            f"{_describe_tree(timestep.observation)}."
        )


def _describe_tree(tree: object) -> object:
    described = jax.tree.map(_describe, tree)
    return described if jax.tree.leaves(tree) else repr(tree)


# --- By taking steps ------------------------------------------------------------------------------------------------


def check_env(env: Environment[Any], num_steps: int = 200, seed: int = 0) -> None:
    """Raise if `env` breaks the contract of `Environment`; return None if it keeps it. Use it in tests of environments.

    The checks are: the spaces; `reset` and `step` return the same structure, shapes, dtypes and weak types (so that
    they are a legal scan carry); observations lie in their space up to the end of the episode; the flags are bool ()
    and the reward a float (); stepping past the end gives no NaN; and `env` is a pytree whose parameters can be traced,
    under `jit`, `vmap` and `scan`.

    Args:
      env: any Environment; `register` is not needed.
      num_steps: how many steps to take, with random actions, without ever resetting.
      seed: of the episodes and of the actions.

    Raises:
      TypeError, ValueError: the contract is broken; the message names the part, what came and what was expected.
    """
    num_steps = positive_int("num_steps", num_steps)
    seed = non_negative_int("seed", seed)
    require_contract(env)
    space = env.action_space  # a property returns a new space each time
    space.seed(seed)
    samples = [space.sample() for _ in range(num_steps)]
    actions = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *samples)
    last, seen = _walk(env, jax.random.split(jax.random.key(seed), NUM_EPISODES), actions)
    seen = jax.tree.map(np.asarray, seen)  # seen[i] is the input of step i
    if seen.done[:, 0].any() or seen.reward[:, 0].any():
        first = jax.tree.map(lambda leaf: leaf[0, 0], seen)
        raise ValueError(f"reset must return reward 0 and both flags False, got {first}.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(last):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and bool(jnp.isnan(leaf).any()):
            raise ValueError(
                f"{jax.tree_util.keystr(path)} is NaN after {num_steps} steps: stepping past the end of an episode "
                "must give no NaN."
            )
    for episode, done in enumerate(seen.done):
        length = int(done.argmax()) + 1 if done.any() else num_steps
        for step in range(length):
            _require_in_space(env, jax.tree.map(lambda leaf, at=(episode, step): leaf[at], seen.observation), step)


NUM_EPISODES = 4


# Pass the parameters as data: what works here works under vmap, grad and set_attr too, and environments of one
# structure share the compiled function.
@jax.jit
def _walk(env: Environment[Any], keys: jax.Array, actions: object) -> Any:
    def episode(key: jax.Array) -> Any:
        return jax.lax.scan(lambda carry, action: (env.step(carry[0], action), carry[1]), env.reset(key), actions)

    return jax.vmap(episode)(keys)


def _describe(leaf: object) -> str:
    aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    return f"{aval.dtype}{list(aval.shape)}" + (" (weak)" if getattr(aval, "weak_type", False) else "")


def _require_same(function: str, from_reset: tuple[Any, Any], from_step: tuple[Any, Any]) -> None:
    before, after = (
        {
            f"{part}{jax.tree_util.keystr(path)}": _describe(leaf)
            for part, tree in zip(("state", "timestep"), pair, strict=True)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for pair in (from_reset, from_step)
    )
    for path in before.keys() | after.keys():
        first, second = before.get(path, "absent"), after.get(path, "absent")
        if first != second:
            hint = (
                " A Python number has a weak dtype: write jnp.float32(0.0) instead." if "weak" in first + second else ""
            )
            raise TypeError(
                f"reset and {function} must return the same structure and dtypes: {path} is {first} from reset and "
                f"{second} from {function}.{hint}"
            )


def _require_in_space(env: Environment[Any], observation: object, step: int) -> None:
    space = env.observation_space
    if not space.contains(observation):
        got = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)} {leaf}", observation)
        raise ValueError(f"The observation of step {step} must lie in {space}, got {got}.")
