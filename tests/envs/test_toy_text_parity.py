"""The toy text environments against Gymnasium's: whole tables of transitions, whole episodes with its draws, starts."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.toy_text import frozen_lake

import jaxenvs
from jaxenvs.envs.toy_text.cliff_walking import CliffWalkingState
from jaxenvs.envs.toy_text.frozen_lake import FrozenLakeState, generate_random_map
from jaxenvs.envs.toy_text.taxi import TaxiState

pytestmark = pytest.mark.skipif("Taxi-v4" not in gymnasium.registry, reason="Gymnasium is older than 1.3")

WIDE = ("SFFFSF", "FHGFFH", "SFFFFG")


@dataclasses.dataclass(frozen=True)
class Case:
    """An environment in both worlds: the parameters have the same names in both."""

    id: str
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.id, *(f"{name}={value}" for name, value in self.parameters.items())])

    def ours(self, max_episode_steps: int = -1) -> jaxenvs.Environment[Any]:
        return jaxenvs.make(self.id, max_episode_steps=max_episode_steps, **self.parameters)

    def reference(self, max_episode_steps: int = -1) -> Any:
        return gymnasium.make(self.id, max_episode_steps=max_episode_steps, disable_env_checker=True, **self.parameters)


TABULAR = [
    Case("FrozenLake-v1"),
    Case("FrozenLake-v1", {"is_slippery": False}),
    Case("FrozenLake-v1", {"success_rate": 0.7, "reward_schedule": (10, -5, -0.1)}),
    Case("FrozenLake-v1", {"desc": WIDE}),
    Case("FrozenLake8x8-v1"),
    Case("CliffWalking-v1"),
    Case("CliffWalkingSlippery-v1"),
    Case("Taxi-v4"),
    Case("Taxi-v4", {"is_rainy": True, "rainy_probability": 0.7}),
    Case("Taxi-v4", {"fickle_passenger": True}),
    Case("Taxi-v4", {"fickle_passenger": True, "is_rainy": True, "fickle_probability": 0.9}),
]
PLAYED = [case for case in TABULAR if case.parameters or case.id.startswith("Cliff")]  # the others are among these


@jaxenvs.struct
class Given:
    """The reference's uniform numbers, in the place of a UniformStream."""

    numbers: jax.Array
    count: jax.Array

    def next(self) -> tuple[Given, jax.Array]:
        return Given(self.numbers, self.count + 1), self.numbers[self.count]


def given(numbers: np.ndarray) -> Given:
    """A stream for each row."""
    return Given(jnp.asarray(numbers, float), jnp.zeros(len(numbers), jnp.int32))


def to_state(case: Case, places: np.ndarray, numbers: np.ndarray, changes: np.ndarray | None = None) -> Any:
    """A batch of states: the reference's states, and the numbers that are to come, (batch, n)."""
    one, _ = jax.eval_shape(case.ours().reset, jax.random.key(0))
    stream = None if one.stream is None else given(numbers)
    position = jnp.asarray(places, jnp.int32)
    if case.id.startswith("Taxi"):
        change = None if one.change_of_mind is None else jnp.asarray(changes, jnp.int32)
        return TaxiState(situation=position, change_of_mind=change, stream=stream)
    kind = FrozenLakeState if case.id.startswith("Frozen") else CliffWalkingState
    return kind(position=position, stream=stream)


@jax.jit
def step_all(env: Any, state: Any, action: jax.Array) -> jaxenvs.TimeStep:
    return jax.vmap(env.step)(state, action)[1]


# One step from every state, with every action, to every outcome.


def outcomes(case: Case) -> dict[str, np.ndarray]:
    """The reference's table, flat; `number` is in the middle of those with which it draws the outcome."""
    rows = []
    for state, actions in case.reference().unwrapped.P.items():
        for action, possible in actions.items():
            below = 0.0
            for prob, following, reward, terminated in possible:
                rows.append((state, action, below + prob / 2, prob, following, reward, terminated))
                below += prob
    names = ("state", "action", "number", "prob", "following", "reward", "terminated")
    return dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))


def assert_whole_table_equal(case: Case, tolerance: float) -> None:
    table = outcomes(case)
    no_change = np.zeros(len(table["state"]))
    state = to_state(case, table["state"], table["number"][:, None], no_change)
    got = step_all(case.ours(), state, jnp.asarray(table["action"]))
    np.testing.assert_array_equal(got.observation, table["following"])
    np.testing.assert_array_equal(got.terminated, table["terminated"])
    np.testing.assert_allclose(got.reward, table["reward"], rtol=tolerance)
    np.testing.assert_allclose(got.info["prob"], table["prob"], rtol=tolerance)
    assert not got.truncated.any()
    reference = case.reference().unwrapped
    if case.id.startswith("Taxi"):
        masks = np.array([reference.action_mask(state) for state in range(500)])
        np.testing.assert_array_equal(got.info["action_mask"], masks[table["following"]])
        assert got.info["action_mask"].dtype == masks.dtype


@pytest.mark.parametrize("case", [case for case in TABULAR if "fickle_passenger" not in case.parameters], ids=str)
def test_whole_table_in_float64(case: Case, x64: None) -> None:
    assert_whole_table_equal(case, 1e-12)


@pytest.mark.parametrize("case", [TABULAR[2], TABULAR[8]], ids=str)
def test_whole_table_in_float32(case: Case) -> None:
    assert_whole_table_equal(case, 1e-5)


class Chosen:
    """A generator that always draws the lowest number and makes the same choice."""

    def __init__(self, choice: int) -> None:
        self._choice = choice

    def random(self) -> float:
        return 0.0

    def choice(self, options: list[int]) -> int:
        return options[self._choice]


def test_every_change_of_mind_of_a_fickle_passenger() -> None:
    case = Case("Taxi-v4", {"fickle_passenger": True})
    reference: Any = case.reference().unwrapped
    states, actions = (grid.ravel() for grid in np.mgrid[:500, :6])
    for choice in range(3):
        reference.np_random = Chosen(choice)
        expected = []
        for state, action in zip(states.tolist(), actions.tolist(), strict=True):
            reference.s, reference.fickle_step = state, True
            expected.append((reference.step(action)[0], reference.fickle_step))
        following, still = np.array(expected).T
        others = np.array([[i for i in range(4) if i != destination][choice] for destination in range(4)])
        changes = (others[states % 4] - states) % 4
        start = to_state(case, states, None, changes)
        state, timestep = jax.jit(jax.vmap(case.ours().step))(start, jnp.asarray(actions))
        np.testing.assert_array_equal(timestep.observation, following)
        np.testing.assert_array_equal(state.change_of_mind != 0, still)


# Whole episodes: the reference's draws are written down, and given to ours.

LIMIT = 120


class Recorded:
    """A generator that writes down what it drew."""

    def __init__(self, seed: int) -> None:
        self._generator, self.numbers, self.choices = np.random.default_rng(seed), [], []

    def random(self) -> float:
        self.numbers.append(self._generator.random())
        return self.numbers[-1]

    def choice(self, options: Any) -> Any:
        self.choices.append(options[self._generator.integers(len(options))])
        return self.choices[-1]


@functools.cache
def best_actions(id: str) -> np.ndarray:
    """What to do in each state of the reference with its parameters as registered, by value iteration."""
    table = outcomes(Case(id))
    at = (table["state"], table["action"])
    values = np.zeros(table["state"].max() + 1)
    for _ in range(500):
        returns = np.zeros((len(values), table["action"].max() + 1))
        going_on = np.where(table["terminated"], 0, values[table["following"]])
        np.add.at(returns, at, table["prob"] * (table["reward"] + 0.999 * going_on))
        values = returns.max(axis=1)
    return returns.argmax(axis=1)


def play_reference(case: Case, env: Any, seed: int) -> dict[str, Any]:
    """An episode to its end, with actions that are the best two times out of three."""
    random = np.random.default_rng(seed)
    reference = env.unwrapped
    reference.np_random = draws = Recorded(seed)
    observation, info = env.reset()
    best = None if "desc" in case.parameters else best_actions(case.id)
    episode: dict[str, Any] = {"start": observation, "start_info": info, "change": 1, "steps": []}
    if getattr(reference, "fickle_passenger", False) and not reference.fickle_step:
        episode["change"] = 0
    draws.numbers.clear()
    done = False
    while not done:
        action = int(random.integers(env.action_space.n))
        if best is not None and random.random() < 2 / 3:
            action = int(best[observation])
        before = observation
        observation, reward, terminated, truncated, info = env.step(action)
        if draws.choices and draws.choices[-1] is not None:
            episode["change"] = (draws.choices[-1] - before) % 4
            draws.choices.append(None)
        mask = info.get("action_mask", np.zeros(0))
        episode["steps"].append((action, observation, reward, terminated, truncated, info["prob"], mask))
        done = terminated or truncated
    episode["numbers"] = np.resize(draws.numbers, LIMIT)
    return episode


@jax.jit
def start_all(env: Any, keys: jax.Array) -> Any:
    return jax.vmap(env.reset)(keys)


@jax.jit
def play_ours(env: Any, state: Any, actions: jax.Array) -> Any:
    def episode(state: Any, actions: jax.Array) -> Any:
        return jax.lax.scan(env.step, state, actions)[1]

    return jax.vmap(episode)(state, actions)


@pytest.mark.thorough
@pytest.mark.parametrize("case", PLAYED, ids=str)
def test_whole_episodes(case: Case, x64: None) -> None:
    reference = case.reference(LIMIT)
    episodes = [play_reference(case, reference, seed) for seed in range(16)]
    columns = [list(zip(*episode["steps"], strict=True)) for episode in episodes]
    actions = np.stack([np.resize(column[0], LIMIT) for column in columns])
    starts, changes = ([episode[name] for episode in episodes] for name in ("start", "change"))
    env = case.ours(LIMIT)
    state, first = start_all(env, jax.random.split(jax.random.key(0), len(episodes)))
    inner = to_state(case, starts, np.stack([episode["numbers"] for episode in episodes]), changes)
    got = play_ours(env, dataclasses.replace(state, inner=inner), jnp.asarray(actions))
    assert first.info.keys() == got.info.keys() == episodes[0]["start_info"].keys()
    assert {episode["start_info"]["prob"] for episode in episodes} == set(first.info["prob"].tolist()) == {1.0}
    assert any(column[3][-1] for column in columns)
    mask = got.info.get("action_mask", np.zeros((*actions.shape, 0)))
    for i, (_, *expected) in enumerate(columns):
        length = len(expected[0])
        ours = (got.observation, got.reward, got.terminated, got.truncated, got.info["prob"], mask)
        for mine, theirs in zip(ours, expected, strict=True):
            np.testing.assert_allclose(mine[i, :length], np.array(theirs), rtol=1e-12)
        assert got.done[i].argmax() + 1 == length


# Starts.


@pytest.mark.parametrize("case", [TABULAR[0], TABULAR[3], TABULAR[5], TABULAR[7], TABULAR[9]], ids=str)
def test_start_states(case: Case) -> None:
    """Each as often as the reference has it, to five standard deviations."""
    num = 20_000
    state, timestep = start_all(case.ours(), jax.random.split(jax.random.key(0), num))
    expected = case.reference().unwrapped.initial_state_distrib
    share = np.bincount(timestep.observation, minlength=len(expected)) / num
    assert (np.abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / num)).all()
    if case.parameters.get("fickle_passenger"):
        share = np.bincount(state.change_of_mind, minlength=4) / num
        assert np.abs(share - [0.7, 0.1, 0.1, 0.1]).max() < 0.015


def test_generated_maps_are_those_of_the_reference() -> None:
    for seed in range(20):
        for size, p in ((4, 0.8), (7, 0.55)):
            assert list(generate_random_map(size, p, seed)) == frozen_lake.generate_random_map(size, p, seed)
