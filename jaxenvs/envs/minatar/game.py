"""Base class of MinAtar's games: ten by ten cells in channels, six actions that may be sticky, a picture."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Generic, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxenvs.drawing import BLACK, draw_tiles
from jaxenvs.environment import Environment, TimeStep, environment, static, struct
from jaxenvs.transformations import set_or_drop

SIZE = 10  # cells along each side
NONE, LEFT, UP, RIGHT, DOWN, FIRE = range(6)  # the actions, in the reference's order

# Colors of channels in pictures. The reference's depend on the channel's number, and players are dark on black.
COLORS = dict.fromkeys(("player", "paddle", "chicken", "cannon", "sub_front"), (255, 255, 255))
COLORS |= dict.fromkeys(("enemy", "car", "alien", "enemy_fish"), (255, 107, 90))
COLORS |= dict.fromkeys(("gold", "ball", "friendly_bullet"), (255, 214, 10))
COLORS |= {"brick": (78, 161, 255), "trail": (132, 132, 140), "sub_back": (178, 190, 205), "enemy_sub": (255, 159, 67)}
COLORS |= {"alien_left": (255, 140, 66), "alien_right": (200, 132, 255), "enemy_bullet": (255, 120, 200)}
COLORS |= {"oxygen_gauge": (72, 202, 228), "diver": (72, 220, 120), "diver_gauge": (164, 200, 60)}
COLORS |= {f"speed {n}": (60, 110 + 28 * n, 255 - 35 * n) for n in range(1, 6)}


@struct
class GameState:
    """Base class of the states of all games.

    Attributes:
      key: for the randomness of the coming steps.
      last_action: int32, the last action that was played, one of the six; a sticky action repeats it.
      terminated: bool, the game is over.
    """

    key: jax.Array
    last_action: jax.Array
    terminated: jax.Array


@struct
class Draws:
    """Random numbers that one step, or one reset, may need; games that need more have a subclass.

    Attributes:
      sticky: float32 in [0, 1). Below `sticky_action_prob` the previous action is played again.
    """

    sticky: jax.Array


State = TypeVar("State", bound=GameState)
DrawsType = TypeVar("DrawsType", bound=Draws)


@environment
class Game(Environment[State], Generic[State, DrawsType]):
    """Base class of MinAtar's games, which are played with all six actions or with the effective ones only.

    A game sets `channels`, `minimal_action_set` and `num_words`, and defines `draws`, `reset_with`, `play` and
    `observe`. All except `draws` are deterministic: with the reference's random numbers they reproduce its episodes.
    Source: Young & Tian (2019), "MinAtar: An Atari-inspired testbed for thorough and reproducible reinforcement
    learning experiments".

    Attributes:
      sticky_action_prob: the probability that the last action is played instead of the given one.
      difficulty_ramping: whether the game gets faster, where it can.
      minimal_actions: whether an action is a position in `minimal_action_set`, as Discrete(3) in Breakout; else it is
        one of all six, nothing (0), left, up, right, down, fire (5). Games name their actions by these numbers.
    """

    sticky_action_prob: float = 0.1
    difficulty_ramping: bool = static(default=True)
    minimal_actions: bool = static(default=True)

    channels: ClassVar[tuple[str, ...]]  # the content of each channel of the observation
    minimal_action_set: ClassVar[tuple[int, ...]]
    num_words: ClassVar[int]  # the random words of 32 bits that a step needs
    random_start: ClassVar[bool] = True  # whether a reset needs some of them

    render_fps = 10
    render_size = 400, 400

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(0, 1, (SIZE, SIZE, len(self.channels)), np.bool_)  # type: ignore[arg-type]

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(len(self.minimal_action_set) if self.minimal_actions else 6)

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        next_key, draws = self.draw_randomness(key)
        # A start that draws nothing leaves the key unused; drawing the next key would cost a call.
        state = self.reset_with(next_key if self.random_start else key, draws)
        return state, TimeStep.create(self.observe(state))

    def step(self, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        key, draws = self.draw_randomness(state.key)
        state, timestep = self.step_with(state, action, draws)
        return dataclasses.replace(state, key=key), timestep

    def draw_randomness(self, key: jax.Array) -> tuple[jax.Array, DrawsType]:
        """Return the next key, and the random numbers of one step.

        All come from one `split`, because on a CPU each call costs time: the words of keys are random words, two for
        the work that `jax.random.bits` does for one.
        """
        size = jax.random.key_data(key).size
        keys = jax.random.split(key, 1 + math.ceil(self.num_words / size))
        return keys[0], self.draws(jax.random.key_data(keys[1:]).ravel()[: self.num_words])

    def step_with(self, state: State, action: jax.Array, draws: DrawsType) -> tuple[State, TimeStep]:
        """Take a step with given random numbers; the key stays unchanged."""
        if self.minimal_actions:
            action = jnp.asarray(self.minimal_action_set, jnp.int32)[action]
        played = jnp.where(draws.sticky < self.sticky_action_prob, state.last_action, action.astype(jnp.int32))
        after, reward = self.play(state, played, draws)
        # A finished game does not change.
        after = jax.tree.map(lambda old, new: jnp.where(state.terminated, old, new), state, after)
        after = dataclasses.replace(after, last_action=played)
        reward = jnp.where(state.terminated, 0, reward)
        return after, TimeStep.create(self.observe(after), reward, after.terminated)

    def draws(self, words: jax.Array) -> DrawsType:
        """Convert uint32 (num_words,) to the random numbers of one step."""
        raise NotImplementedError

    def reset_with(self, key: jax.Array, draws: DrawsType) -> State:
        """Return the start of an episode; `key` is for the steps after it."""
        raise NotImplementedError

    def play(self, state: State, action: jax.Array, draws: DrawsType) -> tuple[State, jax.Array]:
        """Play one of the six actions; return the next state, with any `last_action`, and the reward."""
        raise NotImplementedError

    def observe(self, state: State) -> jax.Array:
        """Return the observation of the player: bool (10, 10, channels)."""
        raise NotImplementedError

    def cells(self, channel: ArrayLike, row: ArrayLike, column: ArrayLike, there: ArrayLike = True) -> jax.Array:
        """Return indices into a raveled observation; past its end where nothing is to be painted.

        Args:
          channel, row, column: ints or arrays of int32; one shape, or to be broadcast.
          there: bool, of the same shape.
        """
        num_channels = len(self.channels)
        index = jnp.asarray((row * SIZE + column) * num_channels + channel, jnp.int32)
        return jnp.where(there, index, SIZE * SIZE * num_channels)

    def paint(self, *cells: jax.Array, onto: jax.Array | None = None) -> jax.Array:
        """Return an observation in which some cells are set.

        It scatters into one raveled array: on a CPU that takes a sixth of the time of stacking planes, which is
        computed in rows as short as the number of channels.

        Args:
          cells: results of `cells`.
          onto: bool (10 * 10 * channels,), cells that are set already.
        """
        shape = (SIZE, SIZE, len(self.channels))
        painted = jnp.zeros(math.prod(shape), bool) if onto is None else onto
        where = jnp.concatenate([jnp.ravel(part) for part in cells])
        return set_or_drop(painted, where, True).reshape(shape)

    def draw(self, state: State, height: int, width: int) -> jax.Array:
        # Where channels overlap, the last one is shown, as in the reference's pictures.
        shown = self.observe(state) * jnp.arange(1, len(self.channels) + 1, dtype=jnp.uint8)
        colors = np.array([BLACK, *(COLORS[name] for name in self.channels)], np.uint8)
        return draw_tiles(shown.max(axis=-1).astype(jnp.int32), colors, height, width)


def uniform(words: jax.Array) -> jax.Array:
    """Convert random words to floats, uniform in [0, 1). The lowest 8 bits of each word remain for other uses."""
    scaled: jax.Array = (words >> 8).astype(jnp.float32) * jnp.float32(2**-24)
    return scaled


def below(words: jax.Array, bound: ArrayLike) -> jax.Array:
    """Convert random words to int32, uniform in 0, ..., bound - 1; the probabilities differ by less than 2**-24.

    Args:
      bound: an int or an array, 1 to 256.
    """
    return (((words >> 8) * jnp.asarray(bound, jnp.uint32)) >> 24).astype(jnp.int32)
