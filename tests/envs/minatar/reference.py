"""Plays the reference's games and writes down every random number that they draw, in the form of our games' `Draws`."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.envs.minatar.players import SHARES_AT_RANDOM, SKILLED

NAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
STICKY_ACTION_PROB = 0.1
STEPS_AFTER_END = 2  # what happens there is to be equal too


def load() -> Any:
    return pytest.importorskip("minatar", reason="the reference is not installed: pip install minatar")


class Recorder(np.random.RandomState):
    """A generator that keeps what it gave.

    Args:
      scale: times which floats are given but for the first of a step, which decides on stickiness. With 0.4 all comes
        from one side, so that in Seaquest nothing that arrives is turned away.
      rows: how many rows things arrive in.
    """

    def __init__(self, seed: int, scale: float = 1.0, rows: int = 8) -> None:
        super().__init__(seed)
        self.scale = scale
        self.rows = rows
        self.given: list[Any] = []

    def rand(self, *size: int) -> Any:
        value = super().rand(*size) * (self.scale if self.given else 1.0)
        self.given.append(copy.copy(value))  # as games change arrays that they are given
        return value

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        value = super().randint(low, high, size, dtype)
        if (low, high) == (1, 9):
            value = 1 + (value - 1) % self.rows
        one_of_some = high is None  # kept with their number
        self.given.append((value, low) if one_of_some else copy.copy(value))
        return value

    def take(self) -> list[Any]:
        given, self.given = self.given, []
        return given


class Script(Recorder):
    """Gives what stands in a script, and lets no action stick."""

    def __init__(self, numbers: list[Any]) -> None:
        super().__init__(0)
        self.numbers = list(numbers)

    def rand(self, *size: int) -> Any:
        self.given.append(self.numbers.pop(0) if self.given and self.numbers else 0.9)
        return self.given[-1]

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        self.given.append(self.numbers.pop(0) if self.numbers else low)
        return self.given[-1]


def _asterix(given: list[Any]) -> dict[str, Any]:
    if not given:
        return {}
    draws = {"right": given[0] < 1 / 2, "gold": given[1] < 1 / 3}
    if len(given) == 3:
        choice, number = given[2]
        draws["slot"] = (choice + 0.5) / number
    return draws


def _breakout(given: list[Any]) -> dict[str, Any]:
    return {"side": given[0][0]} if given else {}


def _freeway(given: list[Any]) -> dict[str, Any]:
    return {"speeds": given[0] * np.where(given[1] < 0.5, -1, 1)} if given else {}


def _seaquest(given: list[Any]) -> dict[str, Any]:
    draws: dict[str, Any] = {}
    if len(given) in (3, 5):
        draws |= {"enemy_right": given[0] < 1 / 2, "enemy_is_sub": given[1] < 1 / 3, "enemy_row": given[2]}
    if len(given) in (2, 5):
        draws |= {"diver_right": given[-2] < 1 / 2, "diver_row": given[-1]}
    return draws


def _space_invaders(given: list[Any]) -> dict[str, Any]:
    assert not given
    return {}


_TRANSLATE: dict[str, Callable[[list[Any]], dict[str, Any]]] = {
    "Asterix": _asterix,
    "Breakout": _breakout,
    "Freeway": _freeway,
    "Seaquest": _seaquest,
    "SpaceInvaders": _space_invaders,
}


def any_draws(game: str, generator: np.random.Generator, size: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Draws that nothing depends on, each within its range: where a game uses one that the reference did not draw,
    the two part."""

    def flags() -> np.ndarray:
        return generator.random(size) < 0.5

    def integers(low: int, high: int) -> np.ndarray:
        return generator.integers(low, high, size, endpoint=True, dtype=np.int32)

    draws: dict[str, np.ndarray] = {"sticky": generator.random(size)}
    if game == "Asterix":
        draws |= {"right": flags(), "gold": flags(), "slot": generator.random(size, np.float32)}
    elif game == "Breakout":
        draws |= {"side": integers(0, 1)}
    elif game == "Freeway":
        speeds = generator.integers(1, 5, (*size, 8), endpoint=True, dtype=np.int32)
        draws |= {"speeds": speeds * generator.choice(np.asarray([-1, 1], np.int32), speeds.shape)}
    elif game == "Seaquest":
        draws |= {"enemy_right": flags(), "enemy_is_sub": flags(), "enemy_row": integers(1, 8)}
        draws |= {"diver_right": flags(), "diver_row": integers(1, 8)}
    return draws


@dataclasses.dataclass
class Record:
    """What happened in some environments, (time, environment, ...). A row is either a reset or a step.

    Attributes:
      reset: whether the row is a reset; its action, reward and end mean nothing then.
      actions: one of the six, as asked for.
    """

    reset: np.ndarray
    actions: np.ndarray
    draws: dict[str, np.ndarray]
    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray


class References:
    """The reference's games, some beside each other, each played one episode after the other.

    Attributes:
      seen: counts of what happened, and the largest of some numbers: whether a record holds what is to be compared.
    """

    def __init__(
        self,
        game: str,
        ramping: bool,
        num_envs: int,
        seed: int,
        shares_at_random: tuple[float, ...] = SHARES_AT_RANDOM,
        players: tuple[Callable[[Any, int], int], ...] | None = None,
        recorder: Callable[[int], Recorder] = Recorder,
    ) -> None:
        self.game = game
        players = SKILLED[game] if players is None else players
        self.players = [players[i % len(players)] for i in range(num_envs)]
        self.shares_at_random = [shares_at_random[i % len(shares_at_random)] for i in range(num_envs)]
        self.generator = np.random.default_rng(seed)
        self.environments = [load().Environment(NAMES[game], STICKY_ACTION_PROB, ramping) for _ in range(num_envs)]
        for i, environment in enumerate(self.environments):
            environment.random = environment.env.random = recorder(seed * 1000 + i)
        self.ended = [True] * num_envs
        self.steps_left = [0] * num_envs  # after the end
        self.seen: collections.Counter[str] = collections.Counter()

    def play(self, num_rows: int) -> Record:
        """Plays on, from where the call before left."""
        size = num_rows, len(self.environments)
        record = Record(
            reset=np.zeros(size, bool),
            actions=self.generator.integers(0, 6, size, dtype=np.int32),
            draws=any_draws(self.game, self.generator, size),
            observations=np.zeros((*size, *self.environments[0].state_shape()), bool),
            rewards=np.zeros(size, np.float32),
            terminated=np.zeros(size, bool),
        )
        for i in range(len(self.environments)):
            for row in range(num_rows):
                self._play_row(record, row, i)
        record.draws["sticky"] = _float32(record.draws["sticky"])
        return record

    def _play_row(self, record: Record, row: int, i: int) -> None:
        environment = self.environments[i]
        game = environment.env
        if self.ended[i] and self.steps_left[i] == 0:
            environment.reset()
            environment.last_action = 0  # the reference would repeat an action of the episode before
            self.ended[i], self.steps_left[i] = False, STEPS_AFTER_END
            record.reset[row, i] = True
            given = environment.random.take()
        else:
            self.steps_left[i] -= self.ended[i]
            action = int(record.actions[row, i])
            if self.generator.random() >= self.shares_at_random[i]:
                record.actions[row, i] = action = self.players[i](game, action)
            before = _NOTES_BEFORE[self.game](game)
            reward, terminated = environment.act(action)
            record.rewards[row, i], record.terminated[row, i] = reward, terminated
            sticky, *given = environment.random.take()
            record.draws["sticky"][row, i] = sticky
            self.seen["steps"] += 1
            self.seen["episodes"] += terminated and not self.ended[i]
            self.ended[i] = terminated
            if game.difficulty_ramp() is not None:
                self._at_least("ramp", game.difficulty_ramp())
            _NOTES[self.game](self, game, reward, before)
        for name, value in _TRANSLATE[self.game](given).items():
            record.draws[name][row, i] = value
        record.observations[row, i] = environment.state()

    def _at_least(self, what: str, number: int) -> None:
        self.seen[what] = max(self.seen[what], number)

    def _note_asterix(self, game: Any, reward: int, before: Any) -> None:
        self._at_least("most entities", sum(entity is not None for entity in game.entities))

    def _note_breakout(self, game: Any, reward: int, bricks: int) -> None:
        self.seen["passes a brick"] += game.brick_map[game.ball_y, game.ball_x] == 1
        self.seen["bricks filled up"] += bricks == 0 and game.brick_map.any()
        self.seen["bricks filled up at the end"] += bricks == 0 and game.brick_map.any() and game.terminal

    def _note_freeway(self, game: Any, reward: int, before: Any) -> None:
        self.seen["crossings"] += reward

    def _note_seaquest(self, game: Any, reward: int, before: tuple[int, int, list[Any]]) -> None:
        on_board, divers, shooting = before
        self._at_least("most fish and submarines", len(game.e_fish) + len(game.e_subs))
        self._at_least("most enemy bullets", len(game.e_bullets))
        self._at_least("most friendly bullets", len(game.f_bullets))
        self._at_least("most divers", len(game.divers))
        self._at_least("most divers on board", game.diver_count)
        self.seen["fewer than no divers on board"] += game.diver_count < 0
        self.seen["out of oxygen"] += game.oxygen < 0
        meets = [game.sub_x, game.sub_y] in [diver[:2] for diver in game.divers]
        self.seen["two divers, room for one"] += meets and (on_board, divers) == (5, 2) and game.diver_count == 6
        shot = [sub for sub in shooting if 0 <= sub[0] <= 9 and all(sub is not other for other in game.e_subs)]
        self.seen["submarines shot as they shoot"] += len(shot)

    def _note_space_invaders(self, game: Any, reward: int, direction: int) -> None:
        self.seen["waves"] += reward > 0 and game.alien_map.sum() == 24
        landed = game.terminal and direction != game.alien_dir and not game.alien_map[9, game.pos]
        self.seen["landings"] += landed and game.alien_map[0].any() and game.alien_map[7:].any()


_NOTES: dict[str, Callable[[References, Any, int, Any], None]] = {
    "Asterix": References._note_asterix,
    "Breakout": References._note_breakout,
    "Freeway": References._note_freeway,
    "Seaquest": References._note_seaquest,
    "SpaceInvaders": References._note_space_invaders,
}
_NOTES_BEFORE: dict[str, Callable[[Any], Any]] = {  # what they compare with
    "Asterix": lambda game: None,
    "Breakout": lambda game: int(game.brick_map.sum()),
    "Freeway": lambda game: None,
    "Seaquest": lambda game: (
        game.diver_count,
        len(game.divers),
        [sub for sub in game.e_subs if sub[3] == sub[4] == 0],  # which move in this step, too
    ),
    "SpaceInvaders": lambda game: game.alien_dir,
}


def _float32(sticky: np.ndarray) -> np.ndarray:
    """To the precision of our draws, on the same side of the probability."""
    rounded, bound = sticky.astype(np.float32), np.float32(STICKY_ACTION_PROB)
    below = np.minimum(rounded, np.nextafter(bound, np.float32(0)))
    return np.where(sticky < STICKY_ACTION_PROB, below, np.maximum(rounded, bound))
