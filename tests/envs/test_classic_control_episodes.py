"""Whole episodes of classic control beside Gymnasium's: the same start and actions, the same episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from tests.envs.test_classic_control_parity import difference, to_rows

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting"),  # see `no_rounding`
    pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date"),
]

# A policy is a function of the reference's state and a generator; both sides get its actions.

Policy = Callable[[np.ndarray, np.random.Generator], Any]


def _balance(observation: Any, _: Any = None) -> Any:
    x, x_dot, theta, theta_dot = observation
    return (theta + 0.3 * theta_dot + 0.02 * x + 0.06 * x_dot > 0) * 1


def _push_where_it_leans(state: np.ndarray, _: np.random.Generator) -> int:
    return int(state[2] > 0)


def _with_the_velocity(state: np.ndarray, _: np.random.Generator) -> int:
    return 2 if state[1] >= 0 else 0


def _pump(state: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return np.array([np.sign(state[1] + 1e-9) * random.uniform(0.5, 2.5)])


def _swing_up(state: np.ndarray, _: np.random.Generator) -> int:
    return 2 if state[3] >= 0 else 0


POLICIES: dict[str, tuple[Policy, Policy]] = {
    "CartPole-v0": (lambda _, random: int(random.integers(2)), _balance),
    "CartPole-v1": (lambda _, random: int(random.integers(2)), _push_where_it_leans),
    "MountainCar-v0": (lambda _, random: int(random.integers(3)), _with_the_velocity),
    "MountainCarContinuous-v0": (lambda _, random: random.normal(0, 0.7, 1), _pump),
    "Pendulum-v1": (lambda _, random: random.uniform(-3, 3, 1), _pump),
    "Acrobot-v1": (lambda _, random: int(random.integers(3)), _swing_up),
}
NUM_EPISODES = 4  # with each policy


def play_reference(id: str, start: np.ndarray, policy: Policy, seed: int) -> dict[str, np.ndarray]:
    env, random = gymnasium.make(id, disable_env_checker=True), np.random.default_rng(seed)
    reference: Any = env.unwrapped
    env.reset(seed=seed)
    reference.state = start
    seen, done = [], False
    while not done:
        action = policy(np.array(reference.state), random)
        _, reward, terminated, truncated, _ = env.step(action)
        seen.append((np.array(reference.state), action, reward, terminated, truncated))
        done = terminated or truncated
    names = ("state", "action", "reward", "terminated", "truncated")
    return dict(zip(names, (np.array(column) for column in zip(*seen, strict=True)), strict=True))


@jax.jit
def _play_all(env: Any, state: Any, actions: jax.Array) -> Any:
    def episode(state: Any, actions: jax.Array) -> Any:
        def step(state: Any, action: jax.Array) -> Any:
            state, timestep = env.step(state, action)
            return state, (to_rows(state.inner), timestep.reward, timestep.terminated, timestep.truncated)

        return jax.lax.scan(step, state, actions)[1]

    return jax.vmap(episode)(state, actions)


@pytest.mark.thorough
@pytest.mark.parametrize("id", sorted(POLICIES))
def test_whole_episodes(id: str, x64: None, no_rounding: None) -> None:
    """The same start and the same actions give the same episode, to its end.

    A balanced pole is the exception, see `test_balanced_pole`: of it only the 200 steps of CartPole-v0 are here.
    """
    env = jaxenvs.make(id)
    state, _ = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 2 * NUM_EPISODES))
    starts = np.asarray(to_rows(state.inner))
    expected = [play_reference(id, start, POLICIES[id][i // NUM_EPISODES], seed=i) for i, start in enumerate(starts)]
    limit = jaxenvs.spec(id).max_episode_steps
    assert limit == gymnasium.spec(id).max_episode_steps
    assert id == "CartPole-v1" or any(episode["truncated"][-1] for episode in expected)
    assert id == "Pendulum-v1" or any(episode["terminated"][-1] for episode in expected)

    actions = np.stack([np.resize(episode["action"], (limit, *episode["action"].shape[1:])) for episode in expected])
    rows, reward, terminated, truncated = map(np.asarray, _play_all(env, state, jnp.asarray(actions)))
    for i, episode in enumerate(expected):
        length = len(episode["reward"])
        assert (terminated | truncated)[i].argmax() + 1 == length
        assert terminated[i, length - 1] == episode["terminated"][-1]
        assert truncated[i, length - 1] == episode["truncated"][-1]
        assert reward[i, :length].sum() == pytest.approx(episode["reward"].sum(), rel=0, abs=1e-8)
        assert difference(id, rows[i, :length], episode["state"]).max() < 1e-8


@pytest.mark.thorough
def test_balanced_pole(x64: None) -> None:
    """500 steps of CartPole-v1, each side with the policy on its own observations.

    The upright pole is unstable, an error grows by 8 % a step: given the same actions, a rounding of 1e-17 is 1e-9
    after 250 steps and the size of the world after 500. Feedback is what keeps a pole up, on both sides.
    """
    env, reference = jaxenvs.make("CartPole-v1"), gymnasium.make("CartPole-v1", disable_env_checker=True)
    step = jax.jit(env.step)
    for seed in range(2):
        reference.reset(seed=seed)
        state, timestep = env.reset(jax.random.key(seed))
        reference.unwrapped.state = np.asarray(to_rows(state.inner))  # type: ignore[attr-defined]
        theirs, seen = np.asarray(timestep.observation), []
        for _ in range(500):
            state, timestep = step(state, jnp.asarray(_balance(timestep.observation), int))
            theirs, reward, terminated, truncated, _ = reference.step(int(_balance(theirs)))
            assert (timestep.reward, timestep.terminated, timestep.truncated) == (reward, terminated, truncated)
            seen.append(np.abs(timestep.observation - theirs).max())
        assert truncated
        assert not terminated
        assert max(seen[:200]) < 1e-6
