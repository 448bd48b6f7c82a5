"""PettingZoo's parallel environments as VecEnvs of all their agents."""

from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor

import bridge
from tests.bridge.small_models import SETTINGS


class Countdown:
    """A parallel environment, as PettingZoo defines it: agent i ends after 2 + i steps; rewards are its action."""

    metadata: ClassVar = {"name": "countdown"}
    possible_agents: ClassVar = ["a", "b"]
    render_mode = None

    def __init__(self, sizes=(3, 3)):
        self.sizes, self.seeds = dict(zip(self.possible_agents, sizes)), []

    def observation_space(self, agent):
        return spaces.Box(0, 99, (self.sizes[agent],), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.count, self.agents = 0, list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.count += 1
        ends = {agent: self.count >= 2 + self.possible_agents.index(agent) for agent in self.agents}
        given = (
            self._seen(),
            {a: float(x) for a, x in actions.items()},
            ends,
            dict.fromkeys(ends, False),
            {a: {} for a in ends},
        )
        self.agents = [agent for agent in self.agents if not ends[agent]]
        return given

    def _seen(self):
        return {
            a: np.full(3, 10 * (1 + i) + self.count, np.float32)
            for i, a in enumerate(self.possible_agents)
            if a in self.agents
        }

    def close(self):
        self.is_closed = True


def test_every_agent_is_a_sub_environment_with_its_own_rewards_and_ends():
    env = bridge.make_vec_env(Countdown, 2, seed=5)
    assert env.env_is_wrapped(Monitor) == [True] * 4  # which SB3's evaluate_policy asks
    np.testing.assert_array_equal(env.reset()[:, 0], [10, 20, 10, 20])
    observation, rewards, dones, _ = env.step(np.array([0, 1, 2, 3]))
    np.testing.assert_array_equal(observation[:, 0], [11, 21, 11, 21])
    np.testing.assert_array_equal(rewards, [0, 1, 2, 3])
    assert not dones.any()
    observation, rewards, dones, infos = env.step(np.array([1, 1, 1, 1]))
    np.testing.assert_array_equal(observation[:, 0], [0, 22, 0, 22])  # a has ended, and waits
    np.testing.assert_array_equal(dones, [True, False, True, False])
    np.testing.assert_array_equal(infos[0]["terminal_observation"], [12, 12, 12])
    assert (infos[0]["episode"]["r"], infos[2]["episode"]["r"]) == (1, 3)
    observation, rewards, dones, infos = env.step(np.array([3, 1, 3, 1]))
    np.testing.assert_array_equal(rewards, [0, 1, 0, 1])
    np.testing.assert_array_equal(dones, [False, True, False, True])
    np.testing.assert_array_equal(observation[:, 0], [10, 20, 10, 20])  # all have ended, and start again
    np.testing.assert_array_equal(infos[1]["terminal_observation"], [23, 23, 23])
    assert [each.seeds[0] for each in env.vector_env.games] == [5, 7]


def test_one_that_exists_is_stepped_itself():
    own = Countdown()
    env = bridge.make_vec_env(own)
    assert env.num_envs == 2
    env.close()
    assert own.is_closed
    with pytest.raises(ValueError, match="a function that makes the environment, for n_envs = 2"):
        bridge.make_vec_env(Countdown(), 2)


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", [bridge.PPO, PPO])
def test_it_trains_with_one_policy(algorithm):
    model = algorithm("MlpPolicy", bridge.make_vec_env(Countdown, 2, seed=0), **SETTINGS).learn(200)
    assert len(model.ep_info_buffer) > 20


def test_different_spaces_are_refused():
    with pytest.raises(ValueError, match=r"one observation_space to share a policy, but a has Box\(.*b has Box"):
        bridge.make_vec_env(Countdown, 2, env_kwargs={"sizes": (3, 4)})


def test_pettingzoos_own_environments_are_known():
    parallel = pytest.importorskip("pettingzoo.test.example_envs.generated_agents_parallel_v0", reason="PettingZoo")
    del parallel
    from pettingzoo.utils import ParallelEnv

    class Theirs(Countdown, ParallelEnv):
        pass

    assert bridge.make_vec_env(Theirs, 2).num_envs == 4
