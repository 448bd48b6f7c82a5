"""Callbacks and logs of bridge.DQN, SAC and TD3 on JAX environments: what SB3 shows and writes, at its steps."""

import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
)

import bridge
from bridge.engine.callbacks.callback_schedule import Pace
from tests.bridge.algorithms.cases import make, make_env
from tests.bridge.small_models import logged


class AtSteps(BaseCallback):
    """Keeps, whenever it is called, the step and the weights."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def _on_step(self):
        weights = torch.nn.utils.parameters_to_vector(self.model.policy.q_net.parameters())
        self.seen[self.num_timesteps] = (weights.detach().numpy().copy(), self.model._n_updates)
        return True


@pytest.mark.thorough
def test_callbacks_at_given_steps_act_there_and_see_the_weights_of_that_step(tmp_path, monkeypatch):
    monkeypatch.setattr(Pace, "next", lambda self, most: most)  # compiled functions as long as they may be
    each, some, new = AtSteps(), AtSteps(), AtSteps()
    make().learn(96, each)
    evaluation = EvalCallback(make_env(), n_eval_episodes=1, eval_freq=7, verbose=0, callback_after_eval=new)
    saving = CheckpointCallback(5, str(tmp_path))
    model = make()
    model.learn(96, CallbackList([EveryNTimesteps(13, some), evaluation, saving]))
    assert list(some.seen) == [14, 28, 42, 56, 70, 84]
    assert list(new.seen) == [14, 28, 42, 56, 70, 84]
    for seen in (some.seen, new.seen):
        for step, (weights, updates) in seen.items():
            np.testing.assert_array_equal(weights, each.seen[step][0])
            assert updates == each.seen[step][1]
    for step in range(10, 97, 10):
        saved = bridge.DQN.load(tmp_path / f"rl_model_{step}_steps.zip")
        weights = torch.nn.utils.parameters_to_vector(saved.policy.q_net.parameters()).detach().numpy()
        np.testing.assert_array_equal(weights, each.seen[step][0][: len(weights)])
        assert (saved.num_timesteps, saved._n_updates) == (step, each.seen[step][1])
    assert len({weights.tobytes() for weights, _ in each.seen.values()}) > 10


def test_a_progress_bar_reaches_the_end():
    pytest.importorskip("tqdm")
    pytest.importorskip("rich")
    model = make()
    model.learn(24, progress_bar=True)
    assert model.num_timesteps == 24


# --- Logs -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
@pytest.mark.parametrize("log_interval", [1, 3])
def test_logs_come_at_sb3s_steps_with_sb3s_names_and_counts(name, log_interval, tmp_path):
    ours, stock = (
        logged(
            make(name, package=package, learning_rate=lambda left: 1e-3 * left),
            tmp_path / package.__name__,
            80,
            log_interval=log_interval,
        )
        for package in (bridge, stable_baselines3)
    )
    assert len(ours) > 3
    names = {"time/episodes", "time/total_timesteps", "train/n_updates", "train/learning_rate", "rollout/ep_len_mean"}
    for mine, theirs in zip(ours, stock, strict=True):
        assert {name for name, value in mine.items() if value} == {name for name, value in theirs.items() if value}
        for each in names & mine.keys():
            assert mine[each] == theirs[each], (each, mine, theirs)
        if name == "DQN":
            assert mine["rollout/exploration_rate"] == theirs["rollout/exploration_rate"]
