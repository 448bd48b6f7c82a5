"""An environment with every kind of space and info, and how what two views give is compared."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs import Environment, TimeStep, environment, struct


@struct
class LotteryState:
    key: jax.Array
    left: jax.Array
    place: jax.Array


@environment
class Lottery(Environment[LotteryState]):
    """Walk until the luck of the start runs out: every kind of space, and an info of every kind."""

    bonus: float = 0.5

    @property
    def observation_space(self) -> spaces.Dict:
        return spaces.Dict(
            place=spaces.Discrete(10, start=-2),
            image=spaces.Box(0, 255, (2, 2), np.uint8),
            pair=spaces.Tuple([spaces.MultiBinary(3), spaces.Box(-np.inf, np.inf, (2,), np.float64)]),
        )

    @property
    def action_space(self) -> spaces.Dict:
        return spaces.Dict(
            go=spaces.Discrete(3, start=1), push=spaces.Box(-1, 1, (2,)), bits=spaces.MultiDiscrete([2, 3])
        )

    def reset(self, key: jax.Array) -> tuple[LotteryState, TimeStep]:
        left = jax.random.randint(key, (), 1, 6)
        return self._show(LotteryState(key=key, left=left, place=jnp.zeros((), jnp.int32)), 0.0)

    def step(self, state: LotteryState, action: Any) -> tuple[LotteryState, TimeStep]:
        reward = self.bonus * action["go"] + action["push"].sum() + action["bits"][1]
        place = jnp.clip(state.place + action["go"] - 2, -2, 7).astype(jnp.int32)
        return self._show(LotteryState(key=jax.random.split(state.key)[0], left=state.left - 1, place=place), reward)

    def _show(self, state: LotteryState, reward: Any) -> tuple[LotteryState, TimeStep]:
        noise = jax.random.uniform(state.key, (2,))
        observation = {
            "place": state.place,
            "image": (noise[:, None] * jnp.array([255, 100])).astype(jnp.uint8),
            "pair": ((noise[0] > jnp.array([0.2, 0.5, 0.8])).astype(jnp.int8), noise),
        }
        nested = {"even": state.left % 2 == 0, "noise": noise}
        info = {"left": state.left, "luck": noise[1], "nested": nested, "both": (noise, state.left)}
        return state, TimeStep.create(observation, reward, state.left <= 0, info=info)


def assert_same(first: Any, second: Any, where: str = "", tolerance: float = 0.0) -> None:
    """The same types, structures, dtypes and, without a tolerance, bits."""
    assert type(first) is type(second), where
    if isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            assert_same(first[key], second[key], f"{where}[{key!r}]", tolerance)
    elif isinstance(first, tuple) or (isinstance(first, np.ndarray) and first.dtype == object):
        assert len(first) == len(second), where
        for i, (one, other) in enumerate(zip(first, second)):
            assert_same(one, other, f"{where}[{i}]", tolerance)
    elif isinstance(first, np.ndarray):
        assert first.dtype == second.dtype, where
        np.testing.assert_allclose(first, second, rtol=0, atol=tolerance, err_msg=where)
    else:
        assert first == second, where


def warnings_of(check: Callable[[], None]) -> set[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check()
    return {str(warning.message) for warning in caught}
