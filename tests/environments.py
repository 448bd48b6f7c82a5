"""Environments whose numbers a test can predict."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs import Environment, TimeStep, environment, static, struct


@struct
class CounterState:
    count: jax.Array
    start: jax.Array


@environment
class Counter(Environment[CounterState]):
    """Counts steps from a random start; ends after `length` of them. Observation and action come in many kinds.

    The reward is the sum of the action. The observation of count c in every kind is made of c.
    """

    length: int = 5
    observation_kind: str = static(default="box")
    action_kind: str = static(default="discrete")

    @property
    def observation_space(self) -> spaces.Space[Any]:
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        return {
            "box": box,
            "image": image,
            "discrete": spaces.Discrete(1000),
            "multi_discrete": spaces.MultiDiscrete([1000, 7]),
            "multi_binary": spaces.MultiBinary(3),
            "dict": spaces.Dict({"vector": box, "image": image, "number": spaces.Discrete(1000)}),
            "boxes": spaces.Dict({"vector": box, "image": image}),
            "tuple": spaces.Tuple((box, spaces.Discrete(1000))),
        }[self.observation_kind]

    @property
    def action_space(self) -> spaces.Space[Any]:
        return {
            "discrete": spaces.Discrete(3),
            "discrete_from_5": spaces.Discrete(3, start=5),
            "multi_discrete": spaces.MultiDiscrete([3, 4]),
            "multi_binary": spaces.MultiBinary(3),
            "box": spaces.Box(np.float32([-1, -2]), np.float32([1, 2])),
        }[self.action_kind]

    def reset(self, key: jax.Array) -> tuple[CounterState, TimeStep]:
        start = jax.random.uniform(key)
        state = CounterState(count=jnp.zeros((), jnp.int32), start=start)
        return state, TimeStep.create(self._observe(state), info=self._info(state))

    def step(self, state: CounterState, action: Any) -> tuple[CounterState, TimeStep]:
        state = CounterState(count=state.count + 1, start=state.start)
        terminated = state.count >= self.length
        return state, TimeStep.create(self._observe(state), jnp.sum(action), terminated, info=self._info(state))

    def action_masks(self, state: CounterState) -> np.ndarray:
        return np.arange(3) <= int(state.count)

    def _info(self, state: CounterState) -> dict[str, Any]:
        return {"count": state.count, "nested": {"pair": jnp.stack([state.count, -state.count])}}

    def _observe(self, state: CounterState) -> Any:
        box = jnp.stack([state.count.astype(jnp.float32), state.start.astype(jnp.float32)])
        image = jnp.full((36, 36, 1), state.count, jnp.uint8)
        return {
            "box": box,
            "image": image,
            "discrete": state.count,
            "multi_discrete": jnp.stack([state.count, state.count % 7]),
            "multi_binary": (state.count >> jnp.arange(3) & 1).astype(jnp.int8),
            "dict": {"vector": box, "image": image, "number": state.count},
            "boxes": {"vector": box, "image": image},
            "tuple": (box, state.count),
        }[self.observation_kind]
