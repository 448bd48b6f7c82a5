"""BitFlipping: make all bits one."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxenvs.arguments import integer
from jaxenvs.environment import TimeStep, environment, static, struct
from jaxenvs.envs.goals.goal_environment import GoalEnvironment, goal_space

MOST_BITS = 512
BACKGROUND, ZERO, ONE = (60, 60, 60), (255, 255, 255), (204, 119, 34)


@struct
class BitFlippingState:
    """State of a BitFlipping: the bits, int8 (n_bits,)."""

    bits: jax.Array


@environment
class BitFlipping(GoalEnvironment[BitFlippingState]):
    """Flip bits until all are one, as SB3's example, `stable_baselines3.common.envs.BitFlippingEnv`.

    Actions: Discrete(n_bits), which bit is flipped; `continuous`: a Box of (n_bits,) from -1 to 1, where every number
    above 0 flips its bit. Observation: MultiBinary(n_bits) under each of the three names; the goal is all ones. Reward:
    0 if the goal is achieved, which terminates the episode, else -1; `info["is_success"]` reports it.
    Source: Andrychowicz et al. (2017), "Hindsight Experience Replay", section 3.1.

    Attributes:
      n_bits: how many, at most 512.
      continuous: whether actions are a Box.
    """

    n_bits: int = static(default=10)
    continuous: bool = static(default=False)

    render_fps = 4

    def __check_init__(self) -> None:
        super().__check_init__()
        integer("n_bits", self.n_bits, 1, MOST_BITS)

    @property
    def default_max_episode_steps(self) -> int:
        """Limit that `make` puts on an episode: as many flips as there are bits."""
        return self.n_bits

    @property
    def observation_space(self) -> gymnasium.spaces.Dict:
        bits = gymnasium.spaces.MultiBinary(self.n_bits)
        return goal_space(bits, bits)

    @property
    def action_space(self) -> gymnasium.Space[object]:
        if self.continuous:
            return gymnasium.spaces.Box(-1, 1, shape=(self.n_bits,), dtype=np.float32)
        return gymnasium.spaces.Discrete(self.n_bits)

    def reset(self, key: jax.Array) -> tuple[BitFlippingState, TimeStep]:
        state = BitFlippingState(jax.random.bernoulli(key, shape=(self.n_bits,)).astype(jnp.int8))
        observation = self._observe(state)
        achieved = (state.bits == 1).all()
        return state, TimeStep.create(observation, info={"is_success": achieved})

    def step(self, state: BitFlippingState, action: jax.Array) -> tuple[BitFlippingState, TimeStep]:
        flipped = action > 0 if self.continuous else jnp.arange(self.n_bits) == action
        state = BitFlippingState(jnp.where(flipped, 1 - state.bits, state.bits))
        observation = self._observe(state)
        reward = self.compute_reward(observation["achieved_goal"], observation["desired_goal"], {})
        return state, TimeStep.create(observation, reward, reward == 0, info={"is_success": reward == 0})

    def compute_reward(self, achieved_goal: ArrayLike, desired_goal: ArrayLike, info: object) -> jax.Array:
        """Return 0 where all bits equal the goal's, else -1."""
        return -jnp.any(jnp.asarray(achieved_goal) != jnp.asarray(desired_goal), axis=-1).astype(float)

    def _observe(self, state: BitFlippingState) -> dict[str, jax.Array]:
        goal = jnp.ones(self.n_bits, jnp.int8)
        return {"observation": state.bits, "achieved_goal": state.bits, "desired_goal": goal}

    @property
    def render_size(self) -> tuple[int, int]:
        return 40, 40 * self.n_bits

    def draw(self, state: BitFlippingState, height: int, width: int) -> jax.Array:
        # A square for each bit, with an edge of a tenth around it.
        across = (jnp.arange(width) + 0.5) * self.n_bits / width
        down = (jnp.arange(height) + 0.5) / height
        bit = jnp.asarray(across, int)
        inside = (abs(across - bit - 0.5) < 0.4) & (abs(down - 0.5) < 0.4)[:, None]
        fill = jnp.where(state.bits[bit][:, None] == 1, jnp.asarray(ONE), jnp.asarray(ZERO))
        return jnp.where(inside[..., None], fill, jnp.asarray(BACKGROUND)).astype(jnp.uint8)
