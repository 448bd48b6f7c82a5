"""Opponents of make_vec_env: chance, zips, models; and who may not be one."""

import numpy as np
import pytest
import stable_baselines3
import torch

import bridge
from bridge import make_vec_env
from bridge.self_play.policy_pools import logits_and_parameters
from jaxenvs.wrappers import Opponents
from tests.bridge.small_models import N_ENVS, SETTINGS
from tests.games import TicTacToe


def make(algorithm=bridge.MaskablePPO, **settings):
    env = make_vec_env(TicTacToe(), N_ENVS, seed=0, opponent="random")
    return algorithm("MlpPolicy", env, **{**SETTINGS, **settings})


@pytest.fixture(scope="module")
def zips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zips")
    paths = []
    for seed in range(2):
        model = make(seed=seed)
        model.policy.action_net.bias.data = torch.arange(9.0) * (50 if seed else -50)
        model.policy.action_net.weight.data.zero_()
        model.save(folder / f"{seed}.zip")
        paths.append(folder / f"{seed}.zip")
    return paths


def first_moves(opponent):
    env = make_vec_env(TicTacToe(), 64, seed=0, opponent=opponent)
    cells = env.reset()[:, 9:]  # the opponent's stones
    return set(cells[cells.any(axis=1)].argmax(axis=1).tolist())


@pytest.mark.thorough
def test_a_zip_plays_as_its_policy_does(zips):
    assert first_moves(zips[0]) == {0}
    assert first_moves(str(zips[1])) == {8}


@pytest.mark.thorough
def test_of_a_list_one_is_drawn_for_each_game(zips):
    assert first_moves(list(zips)) == {0, 8}
    assert len(first_moves([zips[0], "random"])) > 4


@pytest.mark.thorough
def test_random_plays_all_moves():
    assert first_moves("random") == set(range(9))


@pytest.mark.thorough
def test_a_model_and_its_policy_are_opponents(zips):
    model = bridge.MaskablePPO.load(zips[1])
    assert first_moves(model) == first_moves(model.policy) == {8}
    assert first_moves(Opponents.random()) == set(range(9))


def test_logits_are_those_of_the_policy():
    model = make()
    logits, parameters = logits_and_parameters(model)
    observation = np.random.default_rng(0).random((5, 18)).astype(np.float32)
    expected = model.policy.get_distribution(torch.as_tensor(observation)).distribution.logits.detach().numpy()
    ours = np.stack([np.asarray(logits(parameters, row)) for row in observation])
    ours = ours - np.log(np.exp(ours).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_algorithms_of_sb3_play_too(tmp_path):
    model = make(stable_baselines3.PPO)
    model.save(tmp_path / "ppo.zip")
    assert first_moves(tmp_path / "ppo.zip")


def test_architectures_that_differ_are_refused(zips):
    other = make(policy_kwargs={"net_arch": [4]})
    with pytest.raises(ValueError, match=r"policies of one architecture, .* got 2"):
        make_vec_env(TicTacToe(), 2, opponent=[zips[0], other])


@pytest.mark.parametrize(
    ("env", "settings", "error", "message"),
    [
        (
            TicTacToe(),
            {},
            ValueError,
            "TicTacToe is a game of 2 players, so it needs an opponent. Pass opponent='self'",
        ),
        (
            "CartPole-v1",
            {"opponent": "random"},
            ValueError,
            "opponent must be None for .* such as CartPole, got 'random'",
        ),
        (TicTacToe(), {"opponent": []}, ValueError, "at least one player"),
        (TicTacToe(), {"opponent": 3}, TypeError, "A player must be 'random', the path of a zip"),
        (TicTacToe(), {"opponent": "random", "backend": "serial"}, ValueError, "opponent needs .*got backend='serial'"),
        (TicTacToe(), {"opponent": "no.zip"}, FileNotFoundError, "the path of a zip that exists, got 'no.zip'"),
    ],
)
def test_wrong_opponents_are_named(env, settings, error, message):
    with pytest.raises(error, match=message):
        make_vec_env(env, 2, **settings)


def test_a_policy_without_logits_is_refused():
    model = stable_baselines3.DQN("MlpPolicy", make_vec_env("CartPole-v1", 1))
    with pytest.raises(bridge.NotCompilable, match="policy of PPO, A2C or MaskablePPO"):
        make_vec_env(TicTacToe(), 2, opponent=model)
