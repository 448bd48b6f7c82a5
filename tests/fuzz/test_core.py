"""Bad arguments to every public function of jaxenvs, its spaces, arrays and Gymnasium views."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

import jaxenvs
from jaxenvs import (
    Acrobot,
    CartPole,
    Environment,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    TimeLimit,
    VectorEnv,
    arrays,
    checks,
    spaces,
)
from jaxenvs.gym import GymnasiumEnv, GymnasiumVectorEnv
from jaxenvs.gym.registration import RegisteredEnv, RegisteredVectorEnv
from tests.environments import Counter
from tests.fuzz.harness import Case, cases, require_clear
from tests.fuzz.values import (
    INF,
    NAN,
    NOT_A_BOOL,
    NOT_A_COUNT,
    NOT_A_FUNCTION,
    NOT_A_KEY,
    NOT_A_NUMBER,
    NOT_A_SEED,
    NOT_A_STR,
    NOT_AN_ARRAY,
    NOT_AN_INT,
    NOT_POSITIVE,
    NOT_REAL,
    Anything,
)


class Undecorated(Environment[Any]):
    pass


class UndecoratedCart(CartPole):
    pass


NOT_AN_ENV = (None, 0, "CartPole-v1", CartPole, Undecorated, {}, [], Anything(), VectorEnv(CartPole(), 1))
NOT_A_PYTREE = (Undecorated(), UndecoratedCart())
NOT_A_VENV = (None, 0, "CartPole-v1", CartPole(), VectorEnv, {}, Anything())


def test_parameters_of_environments() -> None:
    def all_cases() -> Iterator[Case]:
        for env in (Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum):
            for field in dataclasses.fields(env):
                if field.metadata.get("static"):
                    continue
                bad = {f"{field.name}: {env.__name__}.{field.name}": (*NOT_REAL, NAN, 2**70, {"a": 1.0}, len)}
                yield from cases(env, {}, bad)
        yield from cases(CartPole, {}, {"semi_implicit_euler": NOT_A_BOOL, "sutton_barto_reward": NOT_A_BOOL})
        yield from cases(Acrobot, {}, {"dynamics": (None, 0, "paper", b"book", [], "", NAN)})
        yield from cases(Acrobot, {}, {"torque_noise_max": (*NOT_A_NUMBER, -1.0, INF, -INF)})
        for function in (CartPole().replace, TimeLimit(CartPole(), 3).replace):
            yield from cases(function, {}, {"gravity": NOT_REAL})
            yield from cases(function, {}, {"gravty": [5.0]})
        yield from cases(CartPole().parameter, {}, {"name": ()})
        yield Case("parameter", "gravty", lambda: CartPole().parameter("gravty"))

    require_clear(all_cases(), at_least=500)


def test_making_and_registering() -> None:
    id = {"id": "CartPole-v1"}
    limits = tuple(value for value in NOT_A_COUNT if value is not None)
    entry_points = (None, 0, "module", ":name", "module:", "", [], Anything())

    def all_cases() -> Iterator[Case]:
        unknown = ("", "cartpole", "CartPole-v9", "x" * 10_000)
        for function in (jaxenvs.make, jaxenvs.spec, lambda id: jaxenvs.make_vec(id, 2)):
            yield from cases(function, {}, {"id": NOT_A_STR, "id: No environment": unknown}, "make, spec")
        yield from cases(
            jaxenvs.make,
            id,
            {"max_episode_steps": [limit for limit in limits if not (type(limit) is int and limit == -1)]},
        )
        yield from cases(jaxenvs.make, id, {"gravity": (*NOT_REAL, NAN), "gravty": [5.0], "gravity_": [5.0]})
        vec = {**id, "num_envs": 2}
        yield from cases(jaxenvs.make_vec, vec, {"num_envs": NOT_A_COUNT, "gravity": NOT_REAL})
        yield from cases(jaxenvs.make_vec, vec, {"autoreset": (None, 0, "SameStep", "same_step", True, [])})
        for function in (jaxenvs.register, jaxenvs.Spec):
            bad = {
                "id": NOT_A_STR,
                "entry_point": entry_points,
                "max_episode_steps": (*limits, -1),
                "reward_threshold": [v for v in (*NOT_A_NUMBER, INF) if v is not None],
                "parameters": (0, "gravity", [1], ("gravity", 1), Anything()),
                "parameters: parameter": ({0: 1}, {None: 1}),
            }
            yield from cases(function, {"id": "Fuzz-v0", "entry_point": Counter}, bad)

    require_clear(all_cases(), at_least=150)
    assert "Fuzz-v0" not in jaxenvs.registered()


@pytest.mark.parametrize("entry_point", ["nosuchmodule:Env", "tests.environments:Nothing", "tests.environments:NAMES"])
def test_an_entry_point_that_cannot_be_imported(entry_point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jaxenvs.registry._specs, "Fuzz-v0", jaxenvs.Spec("Fuzz-v0", entry_point))
    require_clear([Case("make", "entry point", lambda: jaxenvs.make("Fuzz-v0"))], at_least=1)


def test_an_entry_point_that_makes_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for made in NOT_AN_ENV:
        monkeypatch.setitem(jaxenvs.registry._specs, "Fuzz-v0", jaxenvs.Spec("Fuzz-v0", lambda made=made: made))
        require_clear([Case("make", "entry point", lambda: jaxenvs.make("Fuzz-v0"))], at_least=1)


def test_wrapping_and_checking() -> None:
    def all_cases() -> Iterator[Case]:
        yield from cases(TimeLimit, {"env": CartPole(), "max_steps": 3}, {"env": (*NOT_AN_ENV, *NOT_A_PYTREE)})
        limits = (*NOT_A_COUNT, np.array([1.5]), np.array([0, 3]), jnp.ones(2))
        yield from cases(TimeLimit, {"env": CartPole()}, {"max_steps": [v for v in limits if not _is_array_of_ints(v)]})
        good = {"env": CartPole(), "num_steps": 3, "seed": 0}
        bad = {"env": (*NOT_AN_ENV, *NOT_A_PYTREE), "num_steps": NOT_POSITIVE, "seed": NOT_A_SEED}
        yield from cases(jaxenvs.check_env, good, bad)
        yield from cases(checks.require_contract, {}, {"env": (*NOT_AN_ENV, *NOT_A_PYTREE)})
        yield from cases(jaxenvs.environment, {}, {"cls: @environment": (None, 0, "a", Anything(), Anything, dict)})
        yield from cases(jaxenvs.struct, {}, {"cls: @struct": (None, 0, "a", Anything(), len)})
        yield from cases(Undecorated, {}, {"gravity: @environment": (1.0, None)})
        yield from cases(jaxenvs.static, {}, {"default": ([], {}, np.zeros(2))})
        create = jaxenvs.TimeStep.create
        yield from cases(create, {"observation": 0}, {"observation": ("a", Anything(), ["a"], {"x": b"a"}, len)})
        yield from cases(create, {"observation": 0}, {"info": (0, [1], "a", {"x": "a"}, {"x": {"y": Anything()}})})
        for name in ("reward", "terminated", "truncated"):
            yield from cases(create, {"observation": 0}, {name: NOT_AN_ARRAY})

    require_clear(all_cases(), at_least=150)


def _is_array_of_ints(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.min() > 0


def test_vectors_and_rollouts() -> None:
    venv = VectorEnv(Counter(), 3)
    reals = VectorEnv(Counter(action_kind="box"), 3)
    state, timestep = jax.eval_shape(venv.reset, jax.random.key(0))
    other, _ = jax.eval_shape(VectorEnv(Counter(), 2).reset, jax.random.key(0))
    key, keys = jax.random.key(0), jax.random.split(jax.random.key(0), 2)
    actions = (*NOT_AN_ARRAY, [0, 0, 0], 0, 1.5, (0, 0, 0), {"a": np.zeros(3, int)})
    shapes = [np.zeros(shape, int) for shape in ((), (2,), (4,), (3, 1), (1, 3), (0,))]
    # The structure, the shape and the kind are what is known before a value is.
    not_integers = [np.zeros(3, dtype) for dtype in (np.float32, np.float64, complex)]
    masks = (*NOT_AN_ARRAY, True, [True] * 3, np.ones(3), np.ones(2, bool), np.ones((3, 1), bool))

    def policy(key: jax.Array, observation: Any) -> Any:
        return jnp.zeros(3, jnp.int32)

    def all_cases() -> Iterator[Case]:
        good = {"env": CartPole(), "num_envs": 3}
        bad = {
            "env": (*NOT_AN_ENV, *NOT_A_PYTREE),
            "num_envs": NOT_A_COUNT,
            "autoreset": (None, 0, "SameStep", "same_step", True, []),
            "env_axis": (1, -1, "0", True, 0.5, [], NAN, False),
        }
        yield from cases(VectorEnv, good, bad)
        yield from cases(VectorEnv, {**good, "env_axis": 0}, {"env: leading axis": (CartPole(), Counter())})
        yield from cases(venv.env_at, {}, {"index": (*NOT_AN_INT, -1, 3, 2**70)})
        bad_episodes = (*NOT_AN_INT[:-4], -1, 2**32, np.zeros(3), np.zeros(2, int), np.zeros((3, 1), int))
        bad_episodes = [value for value in bad_episodes if not isinstance(value, slice)]
        yield from cases(venv.reset, {"key": key}, {"key": (*NOT_A_KEY, keys, keys[None]), "episode": bad_episodes})
        good = {"state": state, "action": np.zeros(3, int)}
        yield from cases(venv.step, good, {"state": (None, 0, "state", {}, (state, timestep), timestep, other)})
        yield from cases(venv.step, good, {"action": (*actions, *shapes, *not_integers)})
        boxes = [np.zeros(shape) for shape in ((), (3,), (2, 2), (3, 3), (3, 2, 1))]
        yield from cases(reals.step, good, {"action": (*actions, *boxes, np.zeros((3, 2), complex))})
        good = {"state": state, "timestep": timestep, "mask": np.ones(3, bool)}
        bad = {"state": (None, 0, timestep, other), "timestep": (None, 0, state, "timestep"), "mask": masks}
        yield from cases(venv.restart, good, bad)
        good = {"venv": venv, "policy": policy, "key": key, "num_steps": 3}
        counts = [value for value in NOT_A_COUNT if not (type(value) is int and value == 0)]
        bad = {"venv": NOT_A_VENV, "policy": NOT_A_FUNCTION, "key": (*NOT_A_KEY, keys), "num_steps": counts}
        yield from cases(jaxenvs.rollout, good, bad)
        starts = (0, "start", [], (), (state,), (state, state), (timestep, state), (state, timestep, 0), state)
        yield from cases(jaxenvs.rollout, good, {"start": starts})

    require_clear(all_cases(), at_least=200)


def test_views_of_gymnasium() -> None:
    env, venv = GymnasiumEnv(CartPole()), GymnasiumVectorEnv(VectorEnv(CartPole(), 3))
    reals = GymnasiumEnv(Pendulum())
    for view in (env, reals):
        view.state = "one that no step gets to see"
    venv._state = env.state
    seeds = [value for value in NOT_A_SEED if value is not None]
    options = [{"low": 0.1}, {"reset_mask": [True]}, [0], "options", 1, True, Anything(), {0: 0}]

    def all_cases() -> Iterator[Case]:
        modes = (0, "human", "ansi", b"rgb_array", True, [], NAN)
        yield from cases(GymnasiumEnv, {"env": CartPole()}, {"env": (*NOT_AN_ENV, *NOT_A_PYTREE), "render_mode": modes})
        vector = VectorEnv(CartPole(), 3)
        yield from cases(GymnasiumVectorEnv, {"venv": vector}, {"venv": NOT_A_VENV, "render_mode": modes})
        yield from cases(env.reset, {}, {"seed": seeds, "options": options})
        lists = ([1, 2], [1, 2, 3, 4], [0, 1, -1], [0, 1, 1.5], [0, 1, "2"], [0, 1, True], [[0], [1], [2]], {0, 1})
        yield from cases(venv.reset, {}, {"seed": (*seeds, *lists), "options": options})
        masks = (None, 1, [True] * 3, np.ones(3), np.ones(2, bool), np.zeros(3, bool), np.ones((3, 1), bool))
        yield from cases(
            lambda mask: venv.reset(options={"reset_mask": mask}), {}, {"mask: reset_mask": masks}, "reset"
        )
        discrete = (None, "0", -1, 2, 0.0, NAN, 2**70, [0], [[0], [0, 1]], {}, Anything(), np.zeros(2, int), 1j)
        yield from cases(env.step, {}, {"action": discrete})
        real = (None, "0", NAN, 1.0, [NAN], [1, 2], [[0.0]], {}, Anything(), np.array([1j]), np.array(["a"]))
        yield from cases(reals.step, {}, {"action": real})
        batch = (None, 0, [0, 1], [0, 1, 2], [0.0] * 3, [[0]] * 3, "000", [None] * 3, {}, np.full(3, NAN))
        yield from cases(venv.step, {}, {"actions": batch})
        # Gymnasium raises what these raise anew.
        yield from cases(RegisteredEnv, {"env_id": "CartPole-v1"}, {"gravity": NOT_REAL, "render_mode": modes})
        made = {"env_id": "CartPole-v1", "num_envs": 2}
        bad = {"num_envs": NOT_A_COUNT, "gravity": NOT_REAL, "autoreset_mode: autoreset": ("same", 0, None, [], True)}
        yield from cases(RegisteredVectorEnv, made, bad)

    require_clear(all_cases(), at_least=150)


def test_spaces() -> None:
    leaves = (Box(-1, 1, (2,)), Discrete(3), MultiDiscrete([2, 3]), MultiBinary(2), Box(0, 255, (2,), np.uint8))
    unsupported = (None, 0, "Discrete(3)", Discrete, [Discrete(3)], {"a": Discrete(3)}, Text(3), Tuple([Text(3)]))
    key, keys = jax.random.key(0), jax.random.split(jax.random.key(0), 2)
    values = (None, "a", b"a", [], {}, Anything(), [[0], [0, 1]], np.zeros(5), np.array("a"), [None, None], (), "ab")

    def all_cases() -> Iterator[Case]:
        for space in (*leaves, Dict(a=leaves[0]), Tuple(leaves)):
            yield from cases(spaces.sample, {"space": space}, {}, "sample")
            for bad in (*NOT_A_KEY, keys):
                yield Case(f"sample({space}, {bad!r:.30})", "key", lambda s=space, bad=bad: spaces.sample(s, bad))
        for space in unsupported:
            for call in (
                lambda s=space: spaces.leaf_bounds(s),
                lambda s=space: spaces.sample(s, key),
                lambda s=space: spaces.contains(s, ("a",)),
                lambda s=space: spaces.flatten(s, ("a",)),
            ):
                yield Case(f"{space}", "space", call)
        for function, space, value in itertools.product((spaces.contains, spaces.flatten), leaves, values):
            name = f"{function.__name__}({space}, {value!r:.30})"
            yield Case(name, "value", lambda f=function, s=space, v=value: f(s, v))
        nested = (Dict(a=Discrete(3)), Tuple([Discrete(3)]))
        for function, space, value in itertools.product(
            (spaces.contains, spaces.flatten), nested, (None, 0, "a", {}, (), [1, 2], {"b": 0}, {"a": "b"}, ("a",))
        ):
            name = f"{function.__name__}({space}, {value!r:.30})"
            yield Case(name, "value", lambda f=function, s=space, v=value: f(s, v))

    require_clear(all_cases(), at_least=200)


def test_arrays() -> None:
    tree = {"x": np.zeros(2, np.float32), "n": 3, "key": jax.random.key(0)}
    good = arrays.to_arrays(tree)

    def all_cases() -> Iterator[Case]:
        leaves = ("a", b"a", Anything(), np.array("a"), np.array([None]), len, jax.ShapeDtypeStruct((), int))
        yield from cases(arrays.to_arrays, {}, {"tree": [*leaves, *({"x": [leaf]} for leaf in leaves)]})
        yield from cases(arrays.from_arrays, {"like": tree}, {"arrays": (None, 0, "a", [], list(good), Anything(), {})})
        wrong = {
            "['x']": (None, 0.0, "a", np.zeros(3, np.float32), np.zeros(2), np.zeros((2, 1)), np.zeros(2, int), []),
            "['n']": (None, 1.5, "3", True, [3], np.zeros(1, int), np.int32(3)),
            "['key']": (None, 0, np.zeros(2), np.zeros(3, np.uint32), jax.random.key(0), "key"),
            "['y']": (0,),
        }
        for name, values in wrong.items():
            for value in values:
                changed = {**good, name: value}
                yield Case(f"{name} = {value!r:.40}", name, lambda c=changed: arrays.from_arrays(tree, c))
        for name in good:
            rest = {other: array for other, array in good.items() if other != name}
            yield Case(f"without {name}", name, lambda rest=rest: arrays.from_arrays(tree, rest))
        yield from cases(arrays.from_arrays, {"arrays": good}, {"like": ("a", Anything(), {"x": "a"})})

    require_clear(all_cases(), at_least=40)
