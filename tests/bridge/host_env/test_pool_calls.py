"""GymVecEnv on what looks like an EnvPool, without one: which calls it makes, and what it makes of their answers."""

import sys
import types
from collections import namedtuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from bridge import GymVecEnv
from bridge.host_env import envpool

TINY = float(np.finfo(np.float32).tiny)
Config = namedtuple("Config", "num_envs seed env_seed max_num_players episodic_life reward_clip")


class Spec:
    _action_spec = ((np.int32, ()), (np.int32, ()), (np.float64, (-1, 1)))

    def __init__(self, config):
        self.config = config


class Pool(gymnasium.vector.VectorEnv):
    """Games of two lives, with EnvPool's calls: a life in environment i lasts i + 2 steps, each of which is worth 5."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    _state_keys = (
        *("info:env_id", "info:players.env_id", "elapsed_step", "done", "reward", "trunc", "obs", "info:reward"),
        "info:terminated",
    )
    _action_keys = ("env_id", "players.env_id", "action")

    def __init__(self, spec):
        self.spec, self._spec, self.config = spec, spec, spec.config._asdict()
        self.num_envs = spec.config.num_envs
        self.single_observation_space = spaces.Box(TINY, float(np.finfo(np.float32).max), (1,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (1,), np.float64)
        self.age = np.zeros(self.num_envs, int)  # of the life
        self.lives = np.full(self.num_envs, 2)
        self.sent, self.is_over = [], np.ones(self.num_envs, bool)

    def reset(self, *, seed=None, options=None):
        self.lives[:], self.age[:], self.is_over[:] = 2, 0, False
        return self._states(np.arange(self.num_envs))[6], {}

    def _send(self, action):
        env_ids, players, values = action
        assert (env_ids.dtype, players.dtype, values.dtype) == (np.int32, np.int32, np.float64)
        assert values.shape == (len(env_ids), 1)
        self.sent.append(env_ids.tolist())
        for index in env_ids:
            if self.is_over[index]:
                self.age[index], self.lives[index] = 0, self.lives[index] or 2
            else:
                self.age[index] += 1
            self.is_over[index] = self.age[index] == index + 2
            self.lives[index] -= self.is_over[index]

    def _recv(self):
        return self._states(np.array(self.sent[-1]))

    def _states(self, env_ids):
        age, over = self.age[env_ids], self.is_over[env_ids]
        moved = (age > 0).astype(np.float32)
        observation = (age + 100 * self.lives[env_ids] + self.config["seed"])[:, None].astype(np.float32)
        games = (over & (self.lives[env_ids] == 0)).astype(np.int32)
        no_limit = np.zeros(len(env_ids), bool)
        return [env_ids, env_ids, age, over, moved, no_limit, observation, 5 * moved, games]


Pool.__module__ = "envpool.games"


def pool(**options):
    settings = {"num_envs": 2, "seed": 0, "env_seed": [], "max_num_players": 1, "episodic_life": True}
    return Pool(Spec(Config(**settings | {"reward_clip": True} | options)))


def steps(venv, count):
    return [venv.step(np.zeros((venv.num_envs, 1), np.float32)) for _ in range(count)]


def test_environments_whose_episode_ended_are_stepped_once_more_and_the_others_are_not():
    venv = GymVecEnv(pool())
    assert venv.reset().tolist() == [[200], [200]]
    shown = [(step[0][:, 0].tolist(), step[2].tolist()) for step in steps(venv, 3)]
    assert shown == [([201, 201], [False, False]), ([100, 202], [True, False]), ([101, 100], [False, True])]
    assert venv.vector_env.sent == [[0, 1], [0, 1], [0], [0, 1], [1]]


def test_the_last_observation_is_that_of_the_life_that_ended():
    venv = GymVecEnv(pool())
    venv.reset()
    infos = steps(venv, 2)[-1][3]
    assert infos[0]["terminal_observation"].tolist() == [102]
    assert (infos[0]["TimeLimit.truncated"], infos[0]["elapsed_step"], infos[0]["reward"]) == (False, 2, 5.0)
    assert venv.reset_infos[0]["elapsed_step"] == 0


@pytest.mark.parametrize("episodic_life", [True, False])
def test_an_episode_is_a_whole_game_and_unclipped_where_lives_end_them(episodic_life):
    venv = GymVecEnv(pool(episodic_life=episodic_life, reward_clip=False))
    venv.reset()
    told = [(at, step[3][0]["episode"]) for at, step in enumerate(steps(venv, 8)) if "episode" in step[3][0]]
    found = [(at, episode["r"], episode["l"]) for at, episode in told]
    of_games, of_lives = [(3, 20.0, 4), (7, 20.0, 4)], [(1, 2.0, 2), (3, 2.0, 2), (5, 2.0, 2), (7, 2.0, 2)]
    assert found == (of_games if episodic_life else of_lives)


def test_spaces_are_gymnasiums():
    venv = GymVecEnv(pool())
    assert venv.observation_space == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert venv.action_space == spaces.Box(-1.0, 1.0, (1,), np.float32)


def test_a_seed_makes_the_pool_anew_at_the_next_reset():
    venv = GymVecEnv(pool())
    venv.reset()
    venv.seed(7)
    assert venv.get_attr("config")[0]["seed"] == 0
    assert venv.reset().tolist() == [[207], [207]]
    assert venv.reset().tolist() == [[207], [207]]  # no seed, no other pool
    assert venv.get_attr("config")[0]["seed"] == 7


def test_a_pool_that_steps_some_environments_at_a_time_is_refused():
    some = pool()
    some.is_async = True
    with pytest.raises(ValueError, match="make the EnvPool with batch_size = num_envs"):
        GymVecEnv(some)


def test_of_several_players_it_is_not_stepped_so():
    class Players(Pool):
        def step(self, actions):
            raise ArithmeticError("by Gymnasium's interface")

    Players.__module__ = "envpool.games"
    venv = GymVecEnv(Players(pool(max_num_players=2).spec))
    venv.reset()
    with pytest.raises(ArithmeticError, match="by Gymnasium's interface"):
        steps(venv, 1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reward_clipp": True}, TypeError, r"'reward_clipp'\. Did you mean 'reward_clip'\? It has"),
        ({"num_envs": 3}, TypeError, "has no option 'num_envs'.*It has: episodic_life, reward_clip"),
        ({"episodic_life": 5}, TypeError, r"Games-v0 does not accept episodic_life=5 \(default: True\)"),
        ({"max_num_players": 2}, ValueError, "Games-v0 has 2 players"),
    ],
)
def test_options_that_envpool_does_not_take_are_named(monkeypatch, options, error, message):
    def make_spec(env_id, **options):
        spec = pool(**options).spec
        if spec.config.episodic_life is not True:
            raise TypeError("__init__(): incompatible constructor arguments.")
        return spec

    fake = types.ModuleType("envpool")
    fake.make_spec = make_spec
    fake.make = lambda env_id, *, env_type, num_envs, seed, **options: Pool(make_spec(env_id, **options))
    monkeypatch.setitem(sys.modules, "envpool", fake)
    with pytest.raises(error, match=message):
        envpool.make("Games-v0", 2, 0, options)
