"""bridge.PPO and bridge.A2C instead of Stable-Baselines3's: what users see stays the same."""

import contextlib
import signal

import gymnasium
import jax
import numpy as np
import pytest
import stable_baselines3
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import bridge
import jaxenvs
from bridge import JaxVecEnv, make_vec_env
from bridge.engine import learner
from bridge.engine.on_policy import compiled_training
from bridge.engine.update import compiled_update
from tests.bridge.algorithms.cases import weights
from tests.bridge.small_models import N_ENVS, N_STEPS, ROLLOUT, SETTINGS, Recorder, make, make_env
from tests.environments import Counter

# --- The constructor ------------------------------------------------------------------------------------------------


def test_arguments_may_be_positional():
    assert bridge.PPO("MlpPolicy", make_env(), 1e-3, 8, 16).batch_size == 16


@pytest.mark.thorough
@pytest.mark.parametrize("package", [bridge, stable_baselines3])
def test_one_gymnasium_environment_is_wrapped_as_by_sb3(package):
    model = package.PPO("MlpPolicy", gymnasium.make("CartPole-v1"), **SETTINGS)
    assert isinstance(model.env, DummyVecEnv)
    assert isinstance(model.env.envs[0], Monitor)
    model.learn(2 * N_STEPS)
    assert model.env.env_method("get_total_steps") == [2 * N_STEPS]
    assert model.ep_info_buffer[0].keys() == {"r", "l", "t"}


def test_a_wrong_engine_is_named_with_the_choices():
    with pytest.raises(ValueError, match=r"one of 'auto', 'xla', 'torch', got 'jax'"):
        make(engine="jax")


@pytest.mark.parametrize("env", ["CartPole-v1", jaxenvs.make("CartPole-v1"), jaxenvs.make_vec("CartPole-v1", 1)])
def test_ids_and_environments_of_jaxenvs_are_jax_environments(env):
    model = make(env)
    assert isinstance(model.get_env().unwrapped, JaxVecEnv)
    model.set_env(env)
    assert isinstance(model.get_env().unwrapped, JaxVecEnv)


BARE_OR_NORMALIZED = [
    pytest.param(lambda env: env, id="bare"),
    pytest.param(VecNormalize, id="VecNormalize", marks=pytest.mark.thorough),
]

# --- Saving, repeating, resuming ------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("algorithm", "wrap"), [(bridge.PPO, lambda env: env), (stable_baselines3.PPO, VecNormalize)])
def test_a_run_that_was_killed_goes_on_bit_for_bit(algorithm, wrap, tmp_path):
    def schedule(remaining):
        return 1e-3 * remaining

    whole = make(wrap(make_env()), algorithm, learning_rate=schedule).learn(6 * ROLLOUT)
    # Killed in the fourth rollout: the checkpoint was written before it.
    killed = make(wrap(make_env()), algorithm, learning_rate=schedule)
    checkpoint = bridge.RolloutCheckpoint(tmp_path / "checkpoint")

    def kill(locals_, _):
        if locals_["self"].num_timesteps > 3 * ROLLOUT + 5:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        killed.learn(6 * ROLLOUT, callback=[checkpoint, Quiet(kill)])
    resumed = bridge.load_checkpoint(algorithm, tmp_path / "checkpoint.zip", wrap(make_env(seed=77)))
    assert resumed.num_timesteps == 3 * ROLLOUT
    resumed.learn(6 * ROLLOUT - resumed.num_timesteps, reset_num_timesteps=False)
    np.testing.assert_array_equal(weights(resumed), weights(whole))
    if wrap is VecNormalize:
        np.testing.assert_array_equal(resumed.env.obs_rms.mean, whole.env.obs_rms.mean)
    else:
        np.testing.assert_array_equal(resumed.key, whole.key)


@pytest.mark.parametrize("wrap", BARE_OR_NORMALIZED)
def test_a_program_that_was_interrupted_did_not_take_place(wrap, monkeypatch):
    """Interrupt as Ctrl-C does while the compiled function runs, before its results are read."""
    whole = make(wrap(make_env())).learn(3 * ROLLOUT)
    model = make(wrap(make_env())).learn(ROLLOUT)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiled_training, "to_host", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.learn(ROLLOUT, reset_num_timesteps=False)
    assert model.num_timesteps == ROLLOUT
    model.learn(2 * ROLLOUT, reset_num_timesteps=False)
    np.testing.assert_array_equal(weights(model), weights(whole))


@pytest.mark.parametrize("wrap", BARE_OR_NORMALIZED)
def test_ctrl_c_while_results_are_left_waits_until_their_steps_are_shown(wrap, monkeypatch):
    whole, model = make(wrap(make_env())).learn(3 * ROLLOUT), make(wrap(make_env()))
    write_rollout = compiled_training.write_rollout

    def interrupted(*arguments):
        write_rollout(*arguments)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(compiled_training, "write_rollout", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.learn(3 * ROLLOUT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert model.num_timesteps == ROLLOUT
    if wrap is not VecNormalize:  # whose update comes after the rollout, as in SB3
        model.learn(2 * ROLLOUT, reset_num_timesteps=False)
        assert model._n_updates == whole._n_updates
        np.testing.assert_array_equal(weights(model), weights(whole))


def test_a_loaded_model_draws_on_or_anew_from_a_seed(tmp_path):
    model = make().learn(ROLLOUT)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(bridge.PPO.load(tmp_path / "model").key, model.key)
    np.testing.assert_array_equal(bridge.PPO.load(tmp_path / "model", seed=5).key, make(seed=5).key)


class Quiet(bridge.ScheduledCallback):
    """Calls a function, and lets the training run compiled."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def _on_step(self):
        return self.function({"self": self.model}, None)


# --- Compiling once -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def compilations():
    """The names of the programs that are compiled in it, in any thread."""
    names, counting = [], True

    def keep(event, duration, fun_name=None, **_):
        if counting and event == "/jax/core/compile/backend_compile_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(keep)  # for good: the first versions cannot take it back
    try:
        yield names
    finally:
        counting = False


def test_nothing_compiles_after_the_first_iteration_nor_for_a_second_model_of_the_same_shape():
    env = make_env()
    model = make(env).learn(2 * ROLLOUT)
    with compilations() as compiled:
        model.learn(3 * ROLLOUT)
        env.set_attr("gravity", 12.0)
        model.learn(ROLLOUT, reset_num_timesteps=False)
        make(seed=5, learning_rate=lambda remaining: 1e-2 * remaining, clip_range=0.3, gamma=0.9).learn(ROLLOUT)
    assert compiled == []


@pytest.mark.thorough
def test_large_updates_have_a_program_of_their_own_that_computes_the_same(monkeypatch):
    small = make().learn(ROLLOUT)
    monkeypatch.setattr(learner, "LARGE_UPDATE", 1)
    large = make()
    large.learn(ROLLOUT)
    exported = tuple(large.plan.learner.exported.items())
    assert compiled_update(large.plan.network, exported, False, mesh=None)._cache_size() == 1
    np.testing.assert_allclose(weights(large), weights(small), rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_the_update_compiles_while_the_first_rollout_does():
    """Once for both: the one in the thread is the one that runs."""
    model = make(n_steps=9, batch_size=12)
    with compilations() as compiled:
        model.learn(9 * N_ENVS, callback=Recorder())
    assert compiled.count("jit(update)") == 1


# --- Learning -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_it_learns_to_balance_a_pole():
    env = make_vec_env("CartPole-v1", 8, seed=0)
    settings = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98}
    model = bridge.PPO("MlpPolicy", env, engine="xla", learning_rate=1e-3, seed=0, **settings).learn(40_000)
    assert bridge.evaluate(model, "CartPole-v1", 50).mean > 200


@pytest.mark.thorough
@pytest.mark.parametrize("observation_kind", ["discrete", "multi_discrete", "multi_binary"])
@pytest.mark.parametrize("algorithm", [bridge.PPO, bridge.A2C])
def test_every_kind_of_observation_trains_compiled(observation_kind, algorithm):
    env = JaxVecEnv(Counter(observation_kind=observation_kind), N_ENVS)
    model = algorithm("MlpPolicy", env, n_steps=8, policy_kwargs={"net_arch": [8]}, engine="xla", seed=0)
    model.learn(64)
    assert model._n_updates > 0
    assert np.isfinite(weights(model)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("frequency", [-1, 4])
def test_state_dependent_exploration_trains_compiled(frequency):
    env = make_vec_env("Pendulum-v1", N_ENVS, seed=0)
    model = make(env, engine="xla", use_sde=True, sde_sample_freq=frequency).learn(2 * ROLLOUT)
    assert model._n_updates == 2 * SETTINGS["n_epochs"]
    assert np.abs(model.rollout_buffer.actions).max() > 0.1


@pytest.mark.thorough  # that it is SB3's: test_arithmetic.py
def test_an_early_stop_is_told(capsys):
    make(target_kl=1e-9, learning_rate=0.1, verbose=1).learn(ROLLOUT)
    assert "Early stopping at step" in capsys.readouterr().out
