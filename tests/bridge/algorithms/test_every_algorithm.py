"""What each algorithm of bridge has in common with the stock class, and what all of them can."""

import copy
import itertools
import pickle

import jax
import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import (
    ConvertCallback,
    EvalCallback,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnRewardThreshold,
)

import bridge
from bridge import load_checkpoint, save_checkpoint
from bridge.algorithms.specs import SPECS
from tests.bridge.algorithms.cases import STEPS, assert_equal, host_env, make, make_env, state_of
from tests.bridge.small_models import Recorder, with_picklable_schedules
from tests.stock import STOCK

SCHEDULES = {"learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.3 * left}
SMALL = {"net_arch": [8], "lstm_hidden_size": 8}
# Name, and settings of its own.
ZIPS = {name: (name, {}) for name in SPECS} | {
    "schedules": ("PPO", SCHEDULES),
    "two layers": ("RecurrentPPO", {"policy_kwargs": SMALL | {"n_lstm_layers": 2}}),
    "shared": ("RecurrentPPO", {"policy_kwargs": SMALL | {"shared_lstm": True, "enable_critic_lstm": False}}),
    "no LSTM of the critic": ("RecurrentPPO", {"policy_kwargs": SMALL | {"enable_critic_lstm": False}}),
}


def learnt(model):
    """The part of a model's state that a zip keeps."""
    state = state_of(model, with_store=False)
    schedules = [getattr(model, each)(0.5) for each in ("lr_schedule", "clip_range") if hasattr(model, each)]
    return {each: state[each] for each in state if each not in ("last_obs", "key")} | {"schedules": schedules}


@pytest.mark.thorough(but=["schedules"])
@pytest.mark.parametrize("case", ZIPS)
def test_zips_go_from_the_stock_library_to_bridge_and_back_in_the_middle_of_a_training(case, tmp_path):
    name, settings = ZIPS[case]
    model = make(name, package=STOCK, **settings).learn(STEPS[name])
    for package in (bridge, STOCK, bridge):
        model.save(tmp_path / "model")
        loaded = getattr(package, name).load(tmp_path / "model", make_env(name), force_reset=False)
        assert_equal(learnt(loaded), learnt(model))
        assert (package is bridge) == hasattr(loaded, "plan")
        loaded._last_obs = loaded.env.reset()
        loaded.learn(STEPS[name], reset_num_timesteps=False)
        assert loaded._n_updates > model._n_updates
        assert package is STOCK or loaded.plan.collects
        model = loaded
    assert model.num_timesteps == 4 * STEPS[name]


@pytest.mark.thorough(but=["PPO-copy", "DQN-pickle"])
@pytest.mark.parametrize(
    "move",
    [
        pytest.param(lambda model: pickle.loads(pickle.dumps(model)), marks=with_picklable_schedules, id="pickle"),
        pytest.param(copy.deepcopy, id="copy"),
    ],
)
@pytest.mark.parametrize("name", SPECS)
def test_a_model_can_be_pickled_and_copied_and_goes_on_as_the_original(name, move):
    model = make(name).learn(STEPS[name])
    other = move(model)
    for each in (model, other):
        each.learn(STEPS[name], reset_num_timesteps=False)
    assert_equal(state_of(other), state_of(model))


# Each learn() of TD3 resets the noise of an episode, with which a checkpoint goes on: test_off_policy_files.py.
@pytest.mark.thorough(but=["DQN"])
@pytest.mark.parametrize("name", [name for name in SPECS if name != "TD3"])
def test_a_checkpoint_goes_on_as_if_nothing_had_come_between_and_is_a_zip_for_the_stock_library(name, tmp_path):
    model = make(name).learn(STEPS[name])
    save_checkpoint(model, tmp_path / "model")
    other = load_checkpoint(getattr(bridge, name), tmp_path / "model", make_env(name))
    for each in (model, other):
        each.learn(STEPS[name], reset_num_timesteps=False)
    assert_equal(state_of(other), state_of(model))
    assert getattr(STOCK, name).load(tmp_path / "model").num_timesteps == STEPS[name]


@pytest.mark.thorough(but=["PPO", "DQN"])
@pytest.mark.parametrize("name", SPECS)
def test_the_same_seed_gives_the_same_training_and_another_one_another(name):
    first, again, other = (
        state_of(make(name, make_env(name, seed=seed), seed=seed).learn(STEPS[name])) for seed in (0, 0, 1)
    )
    assert_equal(again, first)
    assert any(not np.array_equal(first[each], other[each]) for each in first if each.endswith("weight"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", SPECS)
def test_many_seeds_are_one_program(name):
    one, two = bridge.train_seeds(make(name), STEPS[name], [0, 1])
    assert one.num_timesteps == two.num_timesteps == STEPS[name]
    assert one._n_updates == two._n_updates > 0
    assert not all(map(torch.equal, one.policy.parameters(), two.policy.parameters()))
    assert one.learn(STEPS[name]).plan.collects


# --- Callbacks ------------------------------------------------------------------------------------------------------


ENVIRONMENTS = {"JAX": make_env, "host": host_env}
CASES = [*itertools.product(SPECS, ENVIRONMENTS)]
# Of loops over infos and environments, and of what no case has.
LOOPS = {"idx", "done", "done_", "kwargs", "terminal_obs", "terminal_value", "__class__"}


def kinds(value):
    """Return the types, shapes and dtypes of arrays, and the keys of infos."""
    if isinstance(value, list):
        return [sorted(each) for each in value]
    return jax.tree.map(lambda leaf: (type(leaf), getattr(leaf, "shape", None), getattr(leaf, "dtype", None)), value)


@pytest.mark.thorough(but=["PPO-JAX", "MaskablePPO-host"])
@pytest.mark.parametrize(("name", "where"), CASES)
def test_a_callback_that_looks_sees_the_events_and_locals_of_the_stock_library(name, where):
    recorders = Recorder(), Recorder()
    for package, recorder in zip((bridge, STOCK), recorders):
        make(name, ENVIRONMENTS[where](name), package).learn(STEPS[name], recorder)
    ours, theirs = recorders
    assert (ours.events, ours.n_calls) == (theirs.events, theirs.n_calls)
    for mine, reference in zip(ours.steps[::7], theirs.steps[::7], strict=True):
        assert not reference.keys() - mine.keys() - LOOPS
        for each in reference.keys() & mine.keys() - LOOPS - {"self", "callback", "env", "replay_buffer"}:
            assert kinds(mine[each]) == kinds(reference[each]), each


@pytest.mark.thorough(but=["PPO-JAX", "DQN-JAX"])
@pytest.mark.parametrize(("name", "where"), CASES)
def test_a_callback_that_returns_false_stops_the_training_at_its_step(name, where):
    models = []
    for package in (bridge, STOCK):
        models.append(make(name, ENVIRONMENTS[where](name), package))
        models[-1].learn(STEPS[name], ConvertCallback(lambda given, _: given["self"].num_timesteps < 40))
    ours, stock = models
    for counter in ("num_timesteps", "_n_updates", "_episode_num"):
        assert getattr(ours, counter) == getattr(stock, counter), counter
    if not SPECS[name].is_off_policy:
        assert ours.rollout_buffer.pos == stock.rollout_buffer.pos
    ours.learn(STEPS[name], reset_num_timesteps=False)
    assert ours.num_timesteps >= 40 + STEPS[name]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["A2C", "DQN", "SAC"])
def test_stopping_at_a_reward_or_after_episodes_stops_where_the_stock_library_stops(name):
    def after_episodes():
        return StopTrainingOnMaxEpisodes(5)

    def at_a_reward():
        stop = StopTrainingOnRewardThreshold(-1e9)
        return EvalCallback(make_env(name), stop, n_eval_episodes=1, eval_freq=9, verbose=0, warn=False)

    for make_callback in (after_episodes, at_a_reward):
        steps = []
        for package in (bridge, STOCK):
            model = make(name, package=package).learn(200, make_callback())
            steps.append((model.num_timesteps, model._n_updates))
        assert steps[0] == steps[1]
        assert steps[0][0] < 200
