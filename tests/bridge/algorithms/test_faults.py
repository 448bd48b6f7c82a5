"""Changing an import has no hidden costs: no silent NaN, models can be pickled, hooks are called."""

import copy
import io
import pickle
import threading

import jax
import numpy as np
import pytest
import stable_baselines3
import torch

import bridge
from bridge import JaxVecEnv
from tests.bridge.algorithms.cases import weights
from tests.bridge.small_models import ROLLOUT, SB3, Noop, OnRolloutEnd, Recorder, make, make_env, with_n_steps
from tests.environments import Counter


class OnTrainingStart(Noop):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def _on_training_start(self):
        self.function(self.model)


# --- NaN ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [bridge.PPO, SB3])
def test_a_policy_that_becomes_nan_is_an_error_as_in_sb3(algorithm):
    model = make(algorithm=algorithm, learning_rate=1e30)
    with pytest.raises(ValueError):  # noqa: PT011
        model.learn(10 * ROLLOUT)


def test_an_update_that_gives_nan_leaves_the_weights_from_before_it():
    model = make().learn(ROLLOUT)
    before, moments = weights(model), copy.deepcopy(model.policy.optimizer.state_dict())

    def spoil(model):
        model.rollout_buffer.advantages[0, 0] = np.nan

    with pytest.raises(
        ValueError,
        match=r"The update made \d+ of \d+ parameters of policy NaN.*parameters from before the update were kept",
    ):
        model.learn(ROLLOUT, callback=OnRolloutEnd(spoil))
    np.testing.assert_array_equal(weights(model), before)
    assert str(model.policy.optimizer.state_dict()) == str(moments)
    model.learn(ROLLOUT)


def test_nan_weights_do_not_act():
    model = make().learn(ROLLOUT)
    state = model.env.get_state()
    with torch.no_grad():
        model.policy.action_net.weight[0, 0] = np.nan
    with pytest.raises(ValueError, match="distribution is NaN"):
        model.collect_rollouts(model.env, Recorder(), model.rollout_buffer, model.n_steps)
    for name, array in model.env.get_state().items():
        np.testing.assert_array_equal(array, state[name], name)


@pytest.mark.thorough
def test_with_target_kl_nan_does_not_end_an_update_early():
    model = make(target_kl=1e9, n_epochs=2)
    model.learn(ROLLOUT)
    model.rollout_buffer.log_probs[0, 0] = np.nan
    with pytest.raises(ValueError, match="parameters of policy NaN"):
        model.train()


@pytest.mark.thorough
def test_jax_debug_nans_finds_nothing_in_a_sound_training():
    with jax.debug_nans(True):
        make(target_kl=0.5).learn(2 * ROLLOUT)


# --- Pickles and copies ---------------------------------------------------------------------------------------------


def test_a_model_can_be_copied_at_any_moment_of_a_training():
    moments = []

    class Copier(Recorder):
        def _on_event(self, *_):
            moments.append(pickle.dumps(self.model.policy.state_dict()))
            copy.deepcopy(self.model)

        _on_training_start = _on_rollout_start = _on_rollout_end = _on_training_end = _on_event

        def _on_step(self):
            if self.n_calls == 3:
                copy.deepcopy(self.model)
            return True

    make().learn(2 * ROLLOUT, callback=Copier())
    assert len(moments) == 6


# --- What callbacks change ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["_init_callback", "_on_training_start"])
def test_hooks_that_a_callback_registers_fire_in_the_same_learn(moment):
    calls = []
    register = lambda callback: callback.model.policy.action_net.register_forward_hook(  # noqa: E731
        lambda *_: calls.append(1)
    )
    callback = type("Watch", (Recorder,), {moment: register})()
    model = make()
    model.learn(ROLLOUT, callback=callback)
    assert calls
    assert "hook" in str(model.plan)


def change(**settings):
    return lambda model: model.policy.optimizer.param_groups[0].update(settings)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings", [{"betas": (0.5, 0.9)}, {"eps": 1e-2}, {"weight_decay": 0.1}], ids=lambda settings: next(iter(settings))
)
def test_optimiser_settings_that_a_callback_changes_count(settings):
    as_usual, changed = make(), make()
    as_usual.learn(2 * ROLLOUT)
    changed.learn(2 * ROLLOUT, callback=OnRolloutEnd(change(**settings)))
    assert not np.array_equal(weights(changed), weights(as_usual))
    assert changed.plan.updates


@pytest.mark.thorough
def test_an_activation_that_a_callback_changes_counts():
    model = make(policy_kwargs={"net_arch": [8], "activation_fn": torch.nn.LeakyReLU})
    plan = model.plan

    def steepen(model):
        for module in model.policy.modules():
            if isinstance(module, torch.nn.LeakyReLU):
                module.negative_slope = 0.9

    model.learn(ROLLOUT, callback=OnTrainingStart(steepen))
    assert model.plan.network != plan.network
    assert model.plan.collects


def test_gamma_and_gae_lambda_are_those_of_the_buffer_as_in_sb3():
    advantages = []

    def discounts(model):
        model.rollout_buffer.gamma, model.rollout_buffer.gae_lambda = 0.5, 0.3

    def compute_again(model):
        buffer = model.rollout_buffer
        advantages.append(buffer.advantages.copy())
        with torch.no_grad():
            last_values = model.policy.predict_values(torch.as_tensor(model._last_obs))
        buffer.compute_returns_and_advantage(last_values, model._last_episode_starts)
        advantages.append(buffer.advantages.copy())

    make().learn(ROLLOUT, callback=[OnTrainingStart(discounts), OnRolloutEnd(compute_again)])
    np.testing.assert_allclose(*advantages, rtol=1e-4, atol=1e-5)


# --- What cannot be compiled ----------------------------------------------------------------------------------------


def test_an_empty_buffer_is_not_trained_on():
    model = make()
    model.learn(ROLLOUT)
    model.rollout_buffer.reset()
    before = weights(model)
    with pytest.raises(AssertionError):
        model.train()
    np.testing.assert_array_equal(weights(model), before)


@pytest.mark.thorough
def test_actions_reach_an_environment_in_the_dtype_of_its_space():
    model = make(JaxVecEnv(Counter(action_kind="multi_binary", observation_kind="box"), 4))
    model.learn(ROLLOUT)
    assert model.plan.collects


# --- Random numbers -------------------------------------------------------------------------------------------------


def test_without_a_seed_nothing_is_drawn_and_a_seeded_generator_gives_the_same_run():
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002
        state = np.random.get_state()[1].copy()  # noqa: NPY002
        model = make(seed=None)
        np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
        runs.append(model.key)
    np.testing.assert_array_equal(*runs)
    torch.manual_seed(4)
    assert not np.array_equal(make(seed=None).key, runs[0])


# --- Threads and files ----------------------------------------------------------------------------------------------


def test_models_train_in_threads_while_another_predicts():
    main, errors, stop = make(), [], threading.Event()

    def run(function):
        try:
            function()
        except Exception as error:
            errors.append(error)

    def predict():
        while not stop.is_set():
            main.predict(np.zeros((2, 4), np.float32))

    predicting = threading.Thread(target=run, args=(predict,))
    training = [threading.Thread(target=run, args=(lambda: make().learn(ROLLOUT),)) for _ in range(3)]
    predicting.start()
    for thread in training:
        thread.start()
    for thread in training:
        thread.join()
    stop.set()
    predicting.join()
    assert not errors
    main.predict(np.zeros((2, 4), np.float32))


def test_a_save_that_fails_leaves_the_file_from_before(tmp_path, monkeypatch):
    model = make()
    model.save(tmp_path / "model")
    saved = (tmp_path / "model.zip").read_bytes()

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        model.save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]
    assert (tmp_path / "model.zip").read_bytes() == saved


@pytest.mark.parametrize("name", ["model", "model.zip", "ppo_0.98", "deep/er/model"])
def test_a_model_is_saved_where_sb3_saves_it(tmp_path, name):
    for folder, algorithm in (("ours", bridge.PPO), ("stock", SB3)):
        make(algorithm=algorithm).save(tmp_path / folder / name)
        algorithm.load(tmp_path / folder / name)
    names = [sorted(str(p.relative_to(tmp_path / f)) for p in (tmp_path / f).rglob("*")) for f in ("ours", "stock")]
    assert names[0] == names[1]


def test_a_model_is_saved_into_an_open_file():
    file = io.BytesIO()
    make().save(file)
    file.seek(0)
    assert stable_baselines3.PPO.load(file).n_steps == 16


@with_n_steps  # else the n_steps of the zip are refused first
def test_a_zip_of_another_algorithm_is_refused_by_name(tmp_path):
    make().save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"path must be a zip that DQN saved, got .*model, .* ActorCriticPolicy: call"):
        bridge.DQN.load(tmp_path / "model")


def test_a_clip_range_of_zero_trains_as_in_sb3():
    model = make(clip_range=0.0, env=make_env())
    model.learn(ROLLOUT)
    assert np.isfinite(weights(model)).all()
