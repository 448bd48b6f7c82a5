"""tournament: who won, Elo and its interval, and the picture."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import bridge
from bridge.self_play.tournament import elo_of
from tests.bridge.self_play.test_opponents import make
from tests.games import Race, TicTacToe


def player(scale, **settings):
    """A policy that prefers the cells with the highest numbers, or with the lowest where `scale` < 0."""
    model = make(**settings)
    model.policy.action_net.weight.data.zero_()
    model.policy.action_net.bias.data = scale * torch.arange(9.0)
    return model.policy


@pytest.fixture(scope="module")
def result():
    players = {
        "high": player(50),
        "low": player(-50),
        "small": player(0.1, policy_kwargs={"net_arch": [4]}),
        "chance": "random",
    }
    return bridge.tournament(players, TicTacToe(), 200)


@pytest.mark.thorough
def test_every_pair_plays_all_games(result):
    games = result.wins + result.losses + result.draws
    np.testing.assert_array_equal(games, 200 * (1 - np.eye(4)))
    np.testing.assert_array_equal(result.draws, result.draws.T)
    # Who begins wins: 0, 1, 2 and 8, 7, 6 do not cross.
    assert result.wins[0, 1] + result.wins[1, 0] == 200
    assert 60 < result.wins[0, 1] < 140


@pytest.mark.thorough
def test_the_score_against_chance_is_what_evaluate_finds(result):
    env = bridge.make_vec_env(TicTacToe(), 1, opponent="random")
    model = make()
    model.policy = player(50)
    returns = bridge.evaluate(model, env, 2000, deterministic=False, max_steps=20).returns
    expected = np.mean((returns > 0) + 0.5 * (returns == 0))
    assert result.scores[0, 3] == pytest.approx(expected, abs=0.1)
    assert np.isnan(result.scores[0, 0])


def test_elo_is_that_of_known_strengths():
    elo = np.array([300.0, 100.0, -50.0, -350.0])
    expected = 1 / (1 + 10 ** ((elo[None] - elo[:, None]) / 400))
    points = 1e6 * expected * (1 - np.eye(4))
    np.testing.assert_allclose(elo_of(points), elo - elo.mean(), atol=0.1)


def test_who_always_wins_has_a_finite_rating():
    ratings = elo_of(np.array([[0.0, 100.0], [0.0, 0.0]]))
    assert 500 < ratings[0] - ratings[1] < 1000


@pytest.mark.thorough
def test_the_interval_holds_the_rating_and_shrinks_with_more_games(result):
    assert (result.elo_interval[:, 0] <= result.elo).all()
    assert (result.elo <= result.elo_interval[:, 1]).all()
    few = bridge.tournament({"high": player(50), "chance": "random"}, TicTacToe(), 20)
    many = bridge.tournament({"high": player(50), "chance": "random"}, TicTacToe(), 2000)
    assert np.ptp(many.elo_interval, axis=1).max() < 0.5 * np.ptp(few.elo_interval, axis=1).max()


@pytest.mark.thorough
def test_it_prints_a_table_and_draws_a_picture(result):
    lines = str(result).splitlines()
    assert len(lines) == 5
    best = max(range(4), key=lambda i: result.elo[i])
    assert lines[1].startswith(result.names[best])
    ax = bridge.plot_tournament(result)
    assert [label.get_text().split("  ")[0] for label in ax.get_yticklabels()] == [
        line.split()[0] for line in lines[1:]
    ]
    plt.close(ax.figure)


def test_the_same_seed_gives_the_same_games():
    again = bridge.tournament(["random", player(50)], TicTacToe(), 50, seed=3)
    np.testing.assert_array_equal(again.wins, bridge.tournament(["random", player(50)], TicTacToe(), 50, seed=3).wins)
    assert again.names == ("random", "MaskableActorCriticPolicy")


@pytest.mark.parametrize(
    ("players", "game", "error", "message"),
    [
        (["random"], TicTacToe(), ValueError, "at least two players"),
        ("random", TicTacToe(), ValueError, "at least two players"),
        (5, TicTacToe(), ValueError, "at least two players, got 5"),
        (["random", "random"], 3, TypeError, "game must be an id or a game"),
        (["random", "random"], "CartPole-v1", ValueError, "num_players of at least 2"),
    ],
)
def test_wrong_arguments_are_named(players, game, error, message):
    with pytest.raises(error, match=message):
        bridge.tournament(players, game, 10)


@pytest.mark.thorough
def test_a_player_of_another_game_is_refused():
    with pytest.raises(ValueError, match="players"):
        bridge.tournament([player(1), "random"], Race(), 10)
