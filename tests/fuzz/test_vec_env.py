"""Bad arguments to JaxVecEnv, its methods, make_vec_env and the table of compiled wrappers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import VecMonitor

from bridge import JaxVecEnv, make_vec_env
from bridge.wrappers import CompiledWrapper, register_wrapper
from jaxenvs import AutoresetMode, CartPole, VectorEnv
from tests.environments import Counter
from tests.fuzz.harness import Case, cases, require_clear
from tests.fuzz.values import NAN, NOT_A_COUNT, NOT_A_SEED, NOT_A_STR, NOT_AN_INT, NOT_REAL, Anything

GIVEN_COUNTS = [value for value in NOT_A_COUNT if value is not None]
GIVEN_SEEDS = [value for value in NOT_A_SEED if value is not None]
NOT_AN_ENV = (None, 5, NAN, True, [], {}, Anything(), CartPole, gymnasium.Env, np.zeros(3))
NOT_A_DICT = (5, NAN, True, "gravity", [("gravity", 5)], Anything(), np.zeros(2))
NOT_INDICES = (
    3,
    -4,
    2**70,
    1.5,
    NAN,
    True,
    "all",
    b"0",
    {},
    {0: 1},
    [3],
    [-4],
    [0.0],
    [True],
    [[0]],
    [None],
    Anything(),
)
NOT_INDICES_EITHER = (np.array([0.0]), np.array([True, False, True]), np.array([[0]]), np.array(["0"]), slice(2), [NAN])
NOT_ACTIONS = (
    *(None, 0, "left", b"left", {}, [], [0], [0, 1], [[0], [1], [0]], [0, [1], 0], ["a", "b", "c"], [None] * 3),
    *([0, 1, 3], [0, 1, -1], [0, 1, 2**70], [0, 1, NAN], [0, 1, math.inf], [0, 1, 0.5], [0j, 1, 0], Anything()),
    *(np.zeros(2, int), np.zeros((3, 1), int), np.zeros(3), np.full(3, NAN), np.zeros(3, complex), np.zeros(3, object)),
    *(np.full(3, 3), np.full(3, -1), np.zeros((3, 0), int), np.zeros(3, "datetime64[s]"), jnp.zeros(4, int)),
    *(torch.zeros(2, dtype=torch.int64), torch.zeros(3), torch.full((3,), 3)),
)
NOT_PARAMETERS = (*NOT_REAL, NAN, 2**31, -(2**70), 0.5, np.array([5, 5, 5]), torch.zeros(2), np.float32(NAN))


@pytest.fixture(scope="module")
def venv() -> JaxVecEnv:
    venv = JaxVecEnv(Counter(), 3, 0)
    venv.reset()
    return venv


def test_making() -> None:
    def all_cases() -> Iterator[Case]:
        bad: dict[str, Any] = {"env": [*NOT_AN_ENV, "CartPole-v1"], "num_envs": GIVEN_COUNTS, "seed": GIVEN_SEEDS}
        yield from cases(JaxVecEnv, {"env": Counter(), "num_envs": 3, "seed": 0}, bad)
        for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
            yield Case(f"JaxVecEnv({mode})", "auto-reset", lambda mode=mode: JaxVecEnv(VectorEnv(Counter(), 3, mode)))
        yield Case("JaxVecEnv(3, 4)", "num_envs", lambda: JaxVecEnv(VectorEnv(Counter(), 3), 4))
        not_wrappers = (
            5,
            "TimeLimit",
            True,
            gymnasium.Wrapper,
            gymnasium.wrappers.TimeLimit,
            lambda env: None,
            [],
            Anything(),
        )
        bad = {
            "env_id": [env for env in NOT_AN_ENV if env is not CartPole],
            "n_envs": NOT_A_COUNT,
            "seed": GIVEN_SEEDS,
            "start_index": NOT_A_SEED,
            "monitor_dir": (5, NAN, True, [], {}, Anything()),
            "wrapper_class": not_wrappers,
            "env_kwargs": NOT_A_DICT,
            "monitor_kwargs": (*NOT_A_DICT, {"allow_early_resets": False}, {5: 5}),
            "wrapper_kwargs": NOT_A_DICT,
        }
        yield from cases(make_vec_env, {"env_id": Counter, "n_envs": 3, "seed": 0}, bad)

    require_clear(all_cases(), at_least=170)


def test_stepping(venv: JaxVecEnv) -> None:
    def all_cases() -> Iterator[Case]:
        yield from cases(venv.seed, {}, {"seed": GIVEN_SEEDS})
        yield from cases(venv.reset, {}, {"seed: arguments": (0, None), "options: arguments": ({}, None)})
        yield from cases(venv.set_options, {}, {"options": (5, "low", {"low": 0}, [{"low": 0}], True, Anything())})
        yield from cases(venv.step, {}, {"actions": NOT_ACTIONS})
        yield from cases(venv.step_async, {}, {"actions": NOT_ACTIONS})
        tensors = [action for action in NOT_ACTIONS if isinstance(action, torch.Tensor)]
        others = [action for action in NOT_ACTIONS if not isinstance(action, torch.Tensor)]
        yield from cases(venv.step_torch, {}, {"actions": [*tensors, *others, [0, 0, 0], np.zeros(3, int)]})

    before = venv.get_state()
    require_clear(all_cases(), at_least=100)
    np.testing.assert_equal(venv.get_state(), before)


def test_attributes(venv: JaxVecEnv) -> None:
    def all_cases() -> Iterator[Case]:
        indices = {"indices": [*NOT_INDICES, *NOT_INDICES_EITHER]}
        yield from cases(venv.get_attr, {"attr_name": "length"}, {"attr_name": NOT_A_STR, **indices})
        bad = {"attr_name": NOT_A_STR, "value: length": NOT_PARAMETERS, **indices}
        yield from cases(venv.set_attr, {"attr_name": "length", "value": 5}, bad)
        bad = {"method_name: _name": (*NOT_A_STR, "length", "observation_space"), **indices}
        yield from cases(venv.env_method, {"method_name": "replace"}, bad)
        bad = {"wrapper_class": (None, 5, "Monitor", Anything()), **indices}
        yield from cases(venv.env_is_wrapped, {"wrapper_class": gymnasium.Wrapper}, bad)
        for name in ("lenght", "", "__init_"):
            yield Case(f"get_attr({name!r})", name, lambda name=name: venv.get_attr(name))
            yield Case(f"set_attr({name!r})", name, lambda name=name: venv.set_attr(name, 5))

    require_clear(all_cases(), at_least=150)
    assert venv.get_attr("length") == [5] * 3


@pytest.mark.thorough
def test_the_state(venv: JaxVecEnv) -> None:
    before = venv.get_state()

    def all_cases() -> Iterator[Case]:
        yield from cases(venv.set_state, {}, {"state": (None, 5, NAN, "state", [], list(before), {}, Anything())})
        for name, array in before.items():
            values: list[Any] = [None, "3", Anything(), [], {}, np.zeros(7, array.dtype), np.full(array.shape, 1j)]
            if name.startswith("parameters"):
                values += [NAN, 2**40, -(2**70)]
            if name == "env_axis":
                values += [1, -2, 0.5, NAN, True]
            for value in values:
                changed = {**before, name: value}
                yield Case(f"set_state({name} = {value!r:.30})", name, lambda changed=changed: venv.set_state(changed))
            rest = {key: value for key, value in before.items() if key != name}
            yield Case(f"set_state without {name}", name, lambda rest=rest: venv.set_state(rest))
            more = {**before, f"{name}_": array}
            yield Case(f"set_state with {name}_", f"{name}_", lambda more=more: venv.set_state(more))

    require_clear(all_cases(), at_least=60)
    np.testing.assert_equal(venv.get_state(), before)


def test_the_table_of_wrappers() -> None:
    not_classes = (*NOT_AN_INT, JaxVecEnv, Counter)
    good = {"sb3_class": VecMonitor, "compiled_class": CompiledWrapper}
    bad = {"sb3_class": not_classes, "compiled_class": (*not_classes, VecMonitor)}
    require_clear(cases(register_wrapper, good, bad), at_least=30)
