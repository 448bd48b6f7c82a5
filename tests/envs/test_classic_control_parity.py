"""The classic control environments against Gymnasium's: single steps over the state space, and starts."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control import acrobot

import jaxenvs
from jaxenvs.envs.classic_control.acrobot import AcrobotState, wrap_angle
from jaxenvs.envs.classic_control.cartpole import CartPoleState
from jaxenvs.envs.classic_control.mountain_car import MountainCarState
from jaxenvs.envs.classic_control.pendulum import PendulumState

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting"),  # see `no_rounding`
    pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date"),
]

PI = math.pi


@dataclasses.dataclass(frozen=True)
class Case:
    """An environment in both worlds: `parameters` are ours, `attributes` the same ones of the reference."""

    id: str
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.id, *map(str, itertools.chain(*self.parameters.items()))])

    def ours(self) -> jaxenvs.Environment[Any]:
        return jaxenvs.make(self.id, max_episode_steps=-1, **self.parameters)

    def reference(self) -> Any:
        reference = gymnasium.make(self.id, disable_env_checker=True).unwrapped
        reference.reset(seed=0)
        for name, value in self.attributes.items():
            assert hasattr(reference, name)
            setattr(reference, name, value)
        return reference


CASES = [
    Case("CartPole-v1"),
    Case("CartPole-v1", {"semi_implicit_euler": True}, {"kinematics_integrator": "semi-implicit"}),
    Case("CartPole-v1", {"sutton_barto_reward": True}, {"_sutton_barto_reward": True}),
    Case(
        "CartPole-v1",
        {"pole_mass": 0.4, "half_length": 0.7},
        {"masspole": 0.4, "length": 0.7, "total_mass": 1.4, "polemass_length": 0.4 * 0.7},
    ),
    Case("MountainCar-v0"),
    Case("MountainCar-v0", {"goal_velocity": 0.02}, {"goal_velocity": 0.02}),
    # Clipping puts cars exactly on this goal: reached, not passed, is what counts.
    Case("MountainCar-v0", *2 * [{"goal_velocity": 0.07, "goal_position": 0.6}]),
    Case("MountainCarContinuous-v0"),
    Case("MountainCarContinuous-v0", {"goal_velocity": 0.02}, {"goal_velocity": 0.02}),
    Case("Pendulum-v1"),
    Case("Pendulum-v1", {"gravity": 9.81, "mass": 0.7, "length": 1.3}, {"g": 9.81, "m": 0.7, "l": 1.3}),
    Case("Acrobot-v1"),
    Case("Acrobot-v1", {"dynamics": "nips"}, {"book_or_nips": "nips"}),
    Case(
        "Acrobot-v1",
        {
            "link_mass_1": 1.3,
            "link_mass_2": 0.7,
            "link_length_1": 1.2,
            "center_of_mass_1": 0.4,
            "center_of_mass_2": 0.6,
        },
        {"LINK_MASS_1": 1.3, "LINK_MASS_2": 0.7, "LINK_LENGTH_1": 1.2, "LINK_COM_POS_1": 0.4, "LINK_COM_POS_2": 0.6},
    ),
]
IDS = sorted({case.id for case in CASES})


# The two worlds' states as rows of an array.


def to_state(id: str, rows: jax.Array) -> Any:
    """The rows (..., k) of numbers that the reference calls `state`, as our state; of CartPole with `fallen`."""
    columns = [rows[..., i] for i in range(rows.shape[-1])]
    if id == "CartPole-v1":
        return CartPoleState(*columns[:4], fallen=columns[4] > 0)
    if id == "Acrobot-v1":
        return AcrobotState(*columns, key=None)
    return {"Pendulum-v1": PendulumState}.get(id, MountainCarState)(*columns)


def to_rows(state: Any) -> jax.Array:
    """The other way round, without `fallen`."""
    return jnp.stack([leaf for leaf in jax.tree.leaves(state) if leaf.dtype != bool], axis=-1)


# Where to look: a lattice of special values (walls, limits, thresholds, both sides of them) and random states, over
# more than the space the environment can reach.


def _around(*values: float) -> list[float]:
    return [value + nudge for value in values for nudge in (-1e-3, 0.0, 1e-3)]


ANGLE_LIMIT = 12 * 2 * PI / 360
SPECIAL: dict[str, list[list[float]]] = {
    "CartPole-v1": [
        [*_around(-2.4, 2.4), 0.0],
        [-3.0, 0.0, 3.0],
        [*_around(-ANGLE_LIMIT, ANGLE_LIMIT), 0.0],
        [-3.0, 0.0, 3.0],
        [0.0, 1.0],
    ],
    "MountainCar-v0": [
        [*_around(-1.2, 0.45, 0.5, 0.6), -1.19, 0.44, 0.49, 0.59, -PI / 6],
        [*_around(-0.07, 0.0, 0.02, 0.07), -0.01, 0.01],
    ],
    "Pendulum-v1": [_around(-3 * PI, -PI, -PI / 2, 0.0, PI / 2, PI, 3 * PI, 60.0), [*_around(-8.0, 0.0, 8.0)]],
    "Acrobot-v1": [
        [-PI, -PI / 2, 0.0, PI / 2, PI],
        [-PI, -PI / 2, 0.0, PI],
        [-4 * PI, 0.0, 4 * PI],
        [-9 * PI, 0.0, 9 * PI],
    ],
}
RANGE: dict[str, list[float]] = {
    "CartPole-v1": [2.6, 4.0, 0.3, 4.0, 1.0],
    "MountainCar-v0": [1.3, 0.08],
    "Pendulum-v1": [30.0, 8.5],
    "Acrobot-v1": [PI, PI, 4 * PI, 9 * PI],
}
SPECIAL["MountainCarContinuous-v0"], RANGE["MountainCarContinuous-v0"] = (
    SPECIAL["MountainCar-v0"],
    RANGE["MountainCar-v0"],
)
ACTIONS: dict[str, np.ndarray] = {
    "CartPole-v1": np.arange(2),
    "MountainCar-v0": np.arange(3),
    "MountainCarContinuous-v0": np.array([-3.0, -1.001, -1.0, -0.3, 0.0, 0.7, 1.0, 1.001, 3.0])[:, None],
    "Pendulum-v1": np.array([-5.0, -2.001, -2.0, -0.7, 0.0, 0.3, 2.0, 2.001, 5.0])[:, None],
    "Acrobot-v1": np.arange(3),
}


def states_and_actions(id: str, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Every state with every action. Numbers that `dtype` can hold, in float64."""
    reach = np.array(RANGE[id])
    random = np.random.default_rng(0).uniform(-reach, reach, (1000, len(reach)))
    if id == "CartPole-v1":
        random[:, 4] = random[:, 4] > 0
    states = np.concatenate([list(itertools.product(*SPECIAL[id])), random]).astype(dtype).astype(np.float64)
    actions = ACTIONS[id] if ACTIONS[id].dtype == int else ACTIONS[id].astype(dtype).astype(np.float64)
    index, which = (grid.ravel() for grid in np.meshgrid(range(len(states)), range(len(actions)), indexing="ij"))
    return states[index], actions[which]


@dataclasses.dataclass
class Steps:
    """What one step in each of many states gave."""

    state: np.ndarray
    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray


def step_reference(case: Case, states: np.ndarray, actions: np.ndarray) -> Steps:
    reference, seen = case.reference(), []
    for row, action in zip(states, actions, strict=True):
        if case.id == "CartPole-v1":
            reference.steps_beyond_terminated = 1 if row[4] else None
            row = row[:4]
        reference.state = row.copy()
        observation, reward, terminated, truncated, _ = reference.step(action)
        assert not truncated
        seen.append((np.array(reference.state, np.float64), observation, reward, terminated))
    return Steps(*(np.array(column) for column in zip(*seen, strict=True)))


@jax.jit
def _step_all(env: Any, states: Any, actions: jax.Array) -> Any:
    return jax.vmap(lambda env, state, action: env.step(state, action), in_axes=(None, 0, 0))(env, states, actions)


def step_ours(case: Case, states: np.ndarray, actions: np.ndarray) -> Steps:
    dtype = jnp.result_type(float)
    given = jnp.asarray(actions) if actions.dtype == int else jnp.asarray(actions, dtype)
    state, timestep = _step_all(case.ours(), to_state(case.id, jnp.asarray(states, dtype)), given)
    assert all(leaf.dtype in (dtype, bool) for leaf in jax.tree.leaves(state))
    assert timestep.observation.dtype == np.float32
    assert not timestep.truncated.any()
    return Steps(*map(np.asarray, (to_rows(state), timestep.observation, timestep.reward, timestep.terminated)))


def difference(id: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of states; of Acrobot's angles around the circle, where -pi and pi are one."""
    delta = np.abs(left - right)
    if id == "Acrobot-v1":
        delta[:, :2] = np.minimum(delta[:, :2], np.abs(delta[:, :2] - 2 * PI))
    return delta


def margin(case: Case, state: np.ndarray) -> np.ndarray:
    """How far a next state is from where a flag, or the wall's rule, changes."""
    env: Any = case.ours()
    if case.id == "CartPole-v1":
        limits = np.array([env.position_limit, env.angle_limit])
        return np.abs(np.abs(state[:, [0, 2]]) - limits).min(axis=1)
    if case.id.startswith("MountainCar"):
        goal = np.abs(state - [env.goal_position, env.goal_velocity]).min(axis=1)
        wall = np.abs(state[:, 0] - env.min_position)
        return np.where(wall == 0, goal, np.minimum(goal, wall))
    if case.id == "Acrobot-v1":
        return np.abs(-np.cos(state[:, 0]) - np.cos(state[:, 0] + state[:, 1]) - 1.0)
    return np.full(len(state), np.inf)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_step_in_float64(case: Case, x64: None, no_rounding: None) -> None:
    states, actions = states_and_actions(case.id, np.float64)
    expected, got = step_reference(case, states, actions), step_ours(case, states, actions)
    assert difference(case.id, got.state, expected.state).max() < 1e-10
    np.testing.assert_allclose(got.observation, expected.observation.astype(np.float32), rtol=0, atol=1e-10)
    np.testing.assert_allclose(got.reward, expected.reward, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(got.terminated, expected.terminated)
    if case.id != "Pendulum-v1":
        assert 0 < got.terminated.sum() < len(got.terminated)  # the states are worth looking at


def float32_tolerance(case: Case, states: np.ndarray) -> np.ndarray:
    """1e-5 for each state; but the links of an Acrobot at full speed turn by 5 rad in a step, which is far too much for
    the Runge-Kutta method: there a step amplifies a rounding (in the reference, too) a thousandfold.
    """
    if case.id != "Acrobot-v1":
        return np.full(len(states), 1e-5)
    env: Any = case.ours()
    fast = (np.abs(states[:, 2:]) > [env.max_speed_1 / 2, env.max_speed_2 / 2]).any(axis=1)
    return np.where(fast, 5e-4, 1e-5)


def assert_close_in_float32(case: Case, states: np.ndarray, got: Steps, expected: Steps) -> None:
    tolerance = float32_tolerance(case, states)
    clear = margin(case, expected.state) > tolerance
    assert clear.mean() > 0.6
    got, expected = (Steps(*(part[clear] for part in vars(steps).values())) for steps in (got, expected))
    tolerance = tolerance[clear, None]
    assert (difference(case.id, got.state, expected.state) <= tolerance * (1 + np.abs(expected.state))).all()
    error = np.abs(got.observation - expected.observation)
    assert (error <= tolerance * (1 + np.abs(expected.observation))).all()
    np.testing.assert_allclose(got.reward, expected.reward, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got.terminated, expected.terminated)


# What rounds in float32, all cases of an id do.
@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=str)
def test_step_in_float32(case: Case, no_rounding: None) -> None:
    states, actions = states_and_actions(case.id, np.float32)
    assert_close_in_float32(case, states, step_ours(case, states, actions), step_reference(case, states, actions))


def test_step_of_untouched_mountain_car_continuous() -> None:
    """The reference as it is, float32 actions and state, see `no_rounding`; here walls and goals agree exactly."""
    case = Case("MountainCarContinuous-v0")
    states, actions = states_and_actions(case.id, np.float32)
    expected = step_reference(case, states.astype(np.float32), actions.astype(np.float32))
    assert_close_in_float32(case, states, step_ours(case, states, actions), expected)


def test_wrap_of_any_number_of_turns(x64: None) -> None:
    angles = np.concatenate([np.linspace(-100, 100, 4001), [-PI, PI, 0.0]])
    expected = [acrobot.wrap(angle, -PI, PI) for angle in angles]
    np.testing.assert_allclose(wrap_angle(jnp.asarray(angles)), expected, rtol=0, atol=1e-10)


def test_acrobot_with_the_draws_of_the_reference(x64: None) -> None:
    reference = Case("Acrobot-v1").reference()
    reference.torque_noise_max = 0.5
    env: Any = jaxenvs.Acrobot(torque_noise_max=0.5)
    states, actions = states_and_actions("Acrobot-v1", np.float64)
    draws = np.random.default_rng(1)
    step = jax.jit(lambda state, torque: env._swing(state, torque, None))
    for row, action in list(zip(states, actions, strict=True))[::40]:
        noise = draws.uniform(-0.5, 0.5)
        reference.state, reference._np_random = row, SimpleNamespace(uniform=lambda low, high, noise=noise: noise)
        _, reward, terminated, _, _ = reference.step(action)
        state, timestep = step(to_state("Acrobot-v1", jnp.asarray(row)), jnp.asarray(action - 1.0 + noise))
        assert difference("Acrobot-v1", np.asarray(to_rows(state))[None], reference.state[None]).max() < 1e-10
        assert (timestep.reward, timestep.terminated) == (reward, terminated)


@pytest.mark.thorough
@pytest.mark.parametrize("id", IDS)
def test_start_states(id: str) -> None:
    """Bounds, means, deviations and correlations of 2000 starts on each side."""
    num = 2000
    state, _ = jax.jit(jax.vmap(jaxenvs.make(id, max_episode_steps=-1).reset))(jax.random.split(jax.random.key(0), num))
    ours, reference = np.asarray(to_rows(state)), Case(id).reference()
    theirs = []
    for seed in range(num):
        reference.reset(seed=seed)
        theirs.append(np.array(reference.state, np.float64))
    reach = np.ptp(theirs, axis=0)
    for moment, tolerance in ((np.min, 0.01), (np.max, 0.01), (np.mean, 0.03), (np.std, 0.015)):
        assert (np.abs(moment(ours, axis=0) - moment(theirs, axis=0)) <= tolerance * reach).all(), moment
    spread = reach > 0
    off_diagonal = np.corrcoef(ours[:, spread], rowvar=False) - np.eye(spread.sum())
    assert np.abs(off_diagonal).max() < 0.1
