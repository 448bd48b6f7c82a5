"""Players that last: they look into the reference's game, of which a random player would see the first seconds only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

NONE, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
MOVES = {NONE: (0, 0), LEFT: (-1, 0), UP: (0, -1), RIGHT: (1, 0), DOWN: (0, 1)}


def _towards(position: int, goal: int) -> int:
    return RIGHT if goal > position else LEFT if goal < position else NONE


def _next_cells(x: int, y: int, right: bool) -> list[tuple[int, int]]:
    """Where a thing is or may be soon."""
    return [(x + step if right else x - step, y) for step in (0, 1, 2)]


def asterix(game: Any, action: int) -> int:
    """Runs after the nearest gold, where no enemy is or is about to be."""
    x, y = game.player_x, game.player_y
    entities = [entity for entity in game.entities if entity is not None]
    gold = [(column, row) for column, row, _, is_gold in entities if is_gold]
    enemies = {cell for *entity, is_gold in entities if not is_gold for cell in _next_cells(*entity)}

    def cost(move: int) -> Any:
        cell = min(max(x + MOVES[move][0], 0), 9), min(max(y + MOVES[move][1], 1), 8)
        distance = min((abs(cell[0] - column) + abs(cell[1] - row) for column, row in gold), default=abs(cell[0] - 5))
        walls = 3.0 * (cell[0] in (0, 9))  # where enemies come from
        return 100.0 * (cell in enemies) + distance + walls

    return min(MOVES, key=cost)


def breakout(game: Any, action: int) -> int:
    """Returns the ball with the middle or the edge of the paddle; once it has cleared all bricks, not always."""
    if game.ball_y < 8 or game.ball_dir in (0, 1):
        return _towards(game.pos, game.ball_x)
    if not game.brick_map.any() and action in (UP, DOWN):
        return LEFT if game.ball_dir == 2 else RIGHT
    arrives_at = game.ball_x + (1 if game.ball_dir == 2 else -1)
    edge = action in (LEFT, RIGHT, FIRE) and abs(arrives_at - game.pos) <= 1
    return _towards(game.pos, arrives_at if edge else game.ball_x)


def freeway(game: Any, action: int) -> int:
    """Goes up unless a car is about to be in the way."""
    cars = [car for car in game.cars if car[1] == game.pos - 1]
    return DOWN if action == DOWN else NONE if any(abs(car[0] - 4) <= 1 for car in cars) else UP


def space_invaders(game: Any, action: int) -> int:
    """Shoots at the nearest column of aliens and steps out of the way of bullets."""
    return _shoot(game, np.flatnonzero(game.alien_map.any(axis=0)))


def space_invaders_landing(game: Any, action: int) -> int:
    """Lets those aliens land that march on the left and keeps to the right, where it leaves the top ones only."""
    columns = np.flatnonzero(game.alien_map.any(axis=0))
    return _shoot(game, [c for c in columns if c > columns[0] + 1 and game.alien_map[:, c].sum() > 1], columns[0] + 2)


def _shoot(game: Any, columns: Any, leftmost: int = 0) -> int:
    above = game.e_bullet_map[4:9].any(axis=0)
    if above[game.pos]:
        sides = [side for side in (game.pos - 1, game.pos + 1) if 0 <= side <= 9]
        return _towards(game.pos, min(sides, key=lambda side: (above[side], abs(side - 4.5 - leftmost))))
    goal = min((c + game.alien_dir for c in columns), key=lambda column: abs(column - game.pos), default=9)
    goal = min(max(goal, leftmost), 9)
    if len(columns) and game.shot_timer == 0 and abs(goal - game.pos) <= 1:
        return FIRE
    step = _towards(game.pos, goal)
    beside = game.pos + (step == RIGHT) - (step == LEFT)
    return NONE if above[beside % 10] else step


def seaquest(game: Any, action: int) -> int:
    """Waits at the surface for divers, collects six, and once that has made their count negative dives and surfaces."""
    x, y, right = game.sub_x, game.sub_y, game.sub_or
    enemies = [*game.e_fish, *game.e_subs]
    danger = {cell for thing in [*enemies, *game.e_bullets] for cell in _next_cells(thing[0], thing[1], thing[2])}

    def safe(move: int) -> bool:
        cell = min(max(x + MOVES[move][0], 0), 9), min(max(y + MOVES[move][1], 0), 8)
        return cell[1] == 0 or cell not in danger

    if game.diver_count < 0:
        goal = (5, 0 if y else 1)  # each time that it surfaces the enemies grow faster
        if game.ramp_index > 18 and y == 0 and action != DOWN:
            return NONE
    elif game.diver_count == 6 or (game.oxygen < 20 + 2 * y and game.diver_count > 0):
        goal = (x, 0)
    else:
        divers = [(diver[0], diver[1]) for diver in game.divers if 1 <= diver[0] <= 8]
        if not divers and y == 0:
            return NONE
        goal = min(divers, key=lambda cell: abs(cell[0] - x) + abs(cell[1] - y), default=(5, 2))
    ahead = [enemy for enemy in enemies if enemy[1] == y and (enemy[0] > x) == right]
    if ahead and game.shot_timer == 0 and safe(NONE):
        return FIRE

    def cost(move: int) -> Any:
        cell = min(max(x + MOVES[move][0], 0), 9), min(max(y + MOVES[move][1], 0), 8)
        surfaces = cell[1] == 0 and y > 0 and (game.diver_count == 0 or goal[1] > 0)
        return 100.0 * (not safe(move)) + 500.0 * surfaces + abs(cell[0] - goal[0]) + abs(cell[1] - goal[1])

    return min(MOVES, key=cost)


def seaquest_greedy(game: Any, action: int) -> int:
    """With five divers on board it takes no sixth but two that meet, for one of whom there is room.

    It knows that all things are in row 1, and waits below.
    """
    if game.diver_count != 5:
        return seaquest(game, action)
    if len(game.divers) == 2 and game.divers[0][2] != game.divers[1][2]:
        # They move at the same time, and the second came 30 steps after the first.
        step = _towards(game.sub_x, 7 if game.divers[0][2] else 2)
        apart = abs(game.divers[0][0] - game.divers[1][0])
        if step or apart == 2:
            return step or (UP if game.sub_y > 1 else NONE)
    return DOWN if game.sub_y < 2 else NONE


# The players of each game; environments take them in turn.
SKILLED: dict[str, tuple[Callable[[Any, int], int], ...]] = {
    "Asterix": (asterix,),
    "Breakout": (breakout,),
    "Freeway": (freeway,),
    "Seaquest": (seaquest,),
    "SpaceInvaders": (space_invaders, space_invaders_landing),
}

# The share of steps with a random action instead of the skilled one; environments take the shares in turn.
SHARES_AT_RANDOM = (0.0, 0.02, 0.1, 0.4, 1.0)
