"""bridge.PPO and bridge.A2C in the place of Stable-Baselines3's: what users have stays as it was."""

import inspect
import logging
import subprocess
import sys

import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    ProgressBarCallback,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.env_util import make_vec_env as make_gym_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize

import bridge
import jaxenvs
from bridge import JaxVecEnv, make_vec_env
from bridge.policy import NotCompilable, read_parameters
from bridge.rollouts import programs
from bridge.tensor_rollout import TensorRolloutBuffer
from tests.environments import Counter

# One shape for most tests, so that they share their programs.
N_ENVS, N_STEPS = 4, 16
ROLLOUT = N_ENVS * N_STEPS
SMALL = {
    "n_steps": N_STEPS,
    "batch_size": 32,
    "n_epochs": 2,
    "policy_kwargs": {"net_arch": [8]},
    "seed": 0,
    "device": "cpu",
}


def make_env(seed=0, **kwargs):
    return make_vec_env("CartPole-v1", N_ENVS, seed=seed, **kwargs)


def make(env=None, package=bridge, **settings):
    return package.PPO("MlpPolicy", make_env() if env is None else env, **{**SMALL, **settings})


class Recorder(BaseCallback):
    """Keeps what callbacks see."""

    def __init__(self):
        super().__init__()
        self.events, self.steps = [], []

    def _on_training_start(self):
        self.events.append("training start")

    def _on_rollout_start(self):
        self.events.append("rollout start")

    def _on_step(self):
        self.events.append(self.num_timesteps)
        self.steps.append({name: self.locals[name] for name in ("infos", "dones", "rewards", "new_obs", "actions")})
        return True

    def _on_rollout_end(self):
        self.events.append("rollout end")

    def _on_training_end(self):
        self.events.append("training end")


# --- The constructor ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_the_signature_is_sb3s_and_engine(name):
    ours = inspect.signature(getattr(bridge, name)).parameters
    theirs = inspect.signature(getattr(stable_baselines3, name)).parameters
    assert list(ours) == [*theirs, "engine"]
    assert all(ours[parameter].default == theirs[parameter].default for parameter in theirs)


def test_arguments_may_be_positional():
    assert bridge.PPO("MlpPolicy", make_env(), 1e-3, 8, 16).batch_size == 16


def test_a_wrong_engine_is_named_with_the_choices():
    with pytest.raises(ValueError, match=r"one of 'auto', 'xla', 'torch', got 'jax'"):
        make(engine="jax")


@pytest.mark.parametrize("env", ["CartPole-v1", jaxenvs.make("CartPole-v1"), jaxenvs.make_vec("CartPole-v1", 1)])
def test_ids_and_environments_of_jaxenvs_are_jax_environments(env):
    assert isinstance(make(env).get_env().unwrapped, JaxVecEnv)


# --- Callbacks and logs ---------------------------------------------------------------------------------------------


def test_callbacks_are_called_as_by_sb3():
    seen = []
    for package in (stable_baselines3, bridge):
        recorder = Recorder()
        make(package=package).learn(2 * ROLLOUT, callback=recorder)
        seen.append((recorder.events, recorder.n_calls))
    assert seen[0] == seen[1]


def test_callbacks_see_the_steps_that_were_taken():
    recorder = Recorder()
    make().learn(2 * ROLLOUT, callback=recorder)
    # The same actions in environments of the same seed.
    replayed = make_env()
    replayed.seed(0)
    replayed.reset()
    for step in recorder.steps:
        observation, rewards, dones, infos = replayed.step(step["actions"].reshape(N_ENVS))
        np.testing.assert_allclose(step["new_obs"], observation, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(step["rewards"], rewards)
        np.testing.assert_array_equal(step["dones"], dones)
        for ours, theirs in zip(step["infos"], infos, strict=True):
            assert ours.keys() == theirs.keys()
            assert ours["TimeLimit.truncated"] == theirs["TimeLimit.truncated"]
            if "episode" in theirs:
                assert ours["episode"]["l"] == theirs["episode"]["l"]
                assert ours["episode"]["r"] == theirs["episode"]["r"]
                np.testing.assert_allclose(ours["terminal_observation"], theirs["terminal_observation"], rtol=1e-5)
    assert any(step["dones"].any() for step in recorder.steps)


def test_returning_false_stops_at_that_step():
    model = make()
    model.learn(10 * ROLLOUT, callback=lambda locals_, _: locals_["self"].num_timesteps < ROLLOUT + 3 * N_ENVS)
    assert model.num_timesteps == ROLLOUT + 3 * N_ENVS
    assert model._n_updates == SMALL["n_epochs"]


def test_sb3s_callbacks_work(tmp_path):
    env = VecNormalize(make_env())
    evaluation = EvalCallback(
        VecNormalize(make_env(seed=9), training=False, norm_reward=False), n_eval_episodes=4, eval_freq=20
    )
    checkpoint = CheckpointCallback(save_freq=20, save_path=tmp_path, save_vecnormalize=True)
    counted = []
    every = EveryNTimesteps(40, callback=Counted(counted))
    make(env).learn(3 * ROLLOUT, callback=[evaluation, checkpoint, every, ProgressBarCallback()])
    assert len(evaluation.evaluations_results if evaluation.log_path else [evaluation.last_mean_reward]) > 0
    assert evaluation.last_mean_reward > 0
    assert sorted(path.name for path in tmp_path.glob("rl_model_*steps.zip")) == [
        "rl_model_160_steps.zip",
        "rl_model_80_steps.zip",
    ]
    assert len(counted) == 4


class Counted(BaseCallback):
    """Counts its calls."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def _on_step(self):
        self.calls.append(self.num_timesteps)
        return True


def test_stop_training_on_max_episodes():
    model = make()
    model.learn(100 * ROLLOUT, callback=StopTrainingOnMaxEpisodes(2))
    assert model._episode_num == 0
    assert model.num_timesteps < 10 * ROLLOUT


def test_a_callback_that_changes_weights_or_rewards_has_effect():
    class Meddler(BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_end(self):
            with torch.no_grad():
                self.model.policy.value_net.bias.fill_(7.0)
            self.model.rollout_buffer.returns[:] = 7.0
            self.model.rollout_buffer.advantages[:] = 0.0

    model = make()
    model.learn(ROLLOUT, callback=Meddler())
    assert model.policy.value_net.bias.item() == pytest.approx(7, abs=0.01)
    assert model.logger.name_to_value["train/value_loss"] < 3


def test_the_logs_have_sb3s_keys_and_the_time_of_compilation(tmp_path, monkeypatch):
    keys = {stable_baselines3: set(), bridge: set()}
    dump = Logger.dump
    for package, recorded in keys.items():
        model = make(package=package, clip_range_vf=0.2, tensorboard_log=str(tmp_path), stats_window_size=3)

        def keep_and_dump(logger, step=0, recorded=recorded):
            recorded.update(logger.name_to_value)
            dump(logger, step)

        monkeypatch.setattr(Logger, "dump", keep_and_dump)
        model.learn(5 * ROLLOUT)
        assert model.ep_info_buffer.maxlen == 3
    assert keys[bridge] == keys[stable_baselines3] | {"time/compile_s"}
    assert list(tmp_path.glob("PPO_*/events*"))


def test_an_early_stop_is_told(capsys):
    make(target_kl=1e-9, learning_rate=0.1, verbose=1).learn(ROLLOUT)
    assert "Early stopping at step" in capsys.readouterr().out


# --- Wrappers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"norm_obs": False}, {"norm_reward": False}, {"training": False}])
def test_vec_normalize_is_where_stepping_through_it_would_be(settings):
    env = VecNormalize(make_env(), **settings)
    recorder, model = Recorder(), make(env, engine="xla")
    model.learn(2 * ROLLOUT, callback=recorder)
    stepped = VecNormalize(make_env(), **settings)
    stepped.seed(0)
    stepped.reset()
    for step in recorder.steps:
        observation, rewards, dones, infos = stepped.step(step["actions"].reshape(N_ENVS))
        np.testing.assert_allclose(step["new_obs"], observation, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(step["rewards"], rewards, rtol=1e-4)
        for lane in np.flatnonzero(dones):
            last = step["infos"][lane]["terminal_observation"]
            np.testing.assert_allclose(last, infos[lane]["terminal_observation"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(env.ret_rms.var, stepped.ret_rms.var, rtol=1e-5)
    assert env.ret_rms.count == pytest.approx(stepped.ret_rms.count, rel=1e-12)
    np.testing.assert_allclose(env.returns, stepped.returns, rtol=1e-5)
    np.testing.assert_allclose(env.old_obs, stepped.old_obs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(env.old_reward, stepped.old_reward)
    if env.norm_obs:
        np.testing.assert_allclose(env.obs_rms.mean, stepped.obs_rms.mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(env.obs_rms.var, stepped.obs_rms.var, rtol=1e-4)
        assert env.obs_rms.count == pytest.approx(stepped.obs_rms.count, rel=1e-12)
        np.testing.assert_allclose(model._last_obs, observation, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ["inside", "outside"])
def test_vec_monitor_counts_as_if_stepped(order, tmp_path):
    def wrap(env, name):
        if order == "inside":
            return VecNormalize(VecMonitor(env, str(tmp_path / name)))
        return VecMonitor(VecNormalize(env), str(tmp_path / name))

    recorder = Recorder()
    model = make(wrap(make_env(), "ours"), engine="xla")
    model.learn(2 * ROLLOUT, callback=recorder)
    stepped = wrap(make_env(), "stepped")
    stepped.seed(0)
    stepped.reset()
    episodes = 0
    for step in recorder.steps:
        _, _, _, infos = stepped.step(step["actions"].reshape(N_ENVS))
        for ours, theirs in zip(step["infos"], infos, strict=True):
            assert ("episode" in ours) == ("episode" in theirs)
            if "episode" in theirs:
                episodes += 1
                assert ours["episode"]["l"] == theirs["episode"]["l"]
                assert ours["episode"]["r"] == pytest.approx(theirs["episode"]["r"], rel=1e-4)
    assert episodes > 0
    lines = [(tmp_path / f"{name}.monitor.csv").read_text().splitlines() for name in ("ours", "stepped")]
    assert len(lines[0]) == len(lines[1]) == episodes + 2


# --- What is not compiled -------------------------------------------------------------------------------------------


class Own(ActorCriticPolicy):
    """A policy with something of its own."""

    def forward(self, obs, deterministic=False):
        return super().forward(obs, deterministic)


class DropoutExtractor(FlattenExtractor):
    def __init__(self, space):
        super().__init__(space)
        self.flatten = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5))


class OwnBuffer(RolloutBuffer):
    pass


DROPOUT = {"net_arch": [8], "features_extractor_class": DropoutExtractor}
OPTIMIZER = {"net_arch": [8], "optimizer_class": torch.optim.Adagrad}
XLA, SB3 = "XLA", "SB3's code"

# How to make the model; by what it collects and updates; and a part of the reason.
FALLBACKS = {
    "wrapper": (lambda **k: make(VecFrameStack(make_env(), 2), **k), SB3, XLA, "VecFrameStack"),
    "Gymnasium": (lambda **k: make(make_gym_vec_env("CartPole-v1", N_ENVS), **k), SB3, XLA, "DummyVecEnv"),
    "policy": (lambda **k: bridge.PPO(Own, make_env(), **SMALL, **k), SB3, SB3, "Own has a method forward"),
    "dropout": (lambda **k: make(policy_kwargs=DROPOUT, **k), XLA, SB3, "dropout"),
    "optimizer": (lambda **k: make(policy_kwargs=OPTIMIZER, **k), XLA, SB3, "Adagrad"),
    "buffer": (lambda **k: make(rollout_buffer_class=OwnBuffer, **k), SB3, SB3, "OwnBuffer"),
}


@pytest.mark.parametrize("what", FALLBACKS)
def test_auto_falls_back_and_says_once_to_what_and_why(what, caplog):
    make_model, collects, updates, why = FALLBACKS[what]
    with caplog.at_level(logging.WARNING, logger="bridge"):
        model = make_model()
        before = read_parameters(model.policy)
        model.learn(2 * ROLLOUT)
        model.learn(ROLLOUT)
    [record] = caplog.records
    assert f"Collecting by {collects}, updating by {updates}: " in record.getMessage()
    assert why in record.getMessage()
    assert not np.array_equal(read_parameters(model.policy), before)


@pytest.mark.parametrize("what", FALLBACKS)
def test_xla_raises_where_auto_falls_back(what):
    make_model, _, _, why = FALLBACKS[what]
    with pytest.raises(NotCompilable, match=why):
        make_model(engine="xla").learn(ROLLOUT)


def test_torch_collects_tensors(caplog):
    model = make(engine="torch")
    model.learn(2 * ROLLOUT)
    assert isinstance(model.rollout_buffer, TensorRolloutBuffer)
    assert model._n_updates == 2 * SMALL["n_epochs"]
    model.engine = "xla"
    model.learn(ROLLOUT)
    assert type(model.rollout_buffer) is RolloutBuffer


def test_a_subclass_keeps_its_own_train_and_collect():
    class OwnTrain(bridge.PPO):
        def train(self):
            self.seen = self.rollout_buffer.observations.copy(), self.rollout_buffer.full
            super().train()

    class OwnCollect(bridge.PPO):
        def collect_rollouts(self, *args, **kwargs):
            self.collected = True
            return super().collect_rollouts(*args, **kwargs)

    model = OwnTrain("MlpPolicy", make_env(), **SMALL).learn(ROLLOUT)
    assert model.seen[0].shape == (N_STEPS, N_ENVS, 4)
    assert model.seen[0].any()
    assert model.seen[1]
    assert model._n_updates == SMALL["n_epochs"]
    assert OwnCollect("MlpPolicy", make_env(), **SMALL).learn(ROLLOUT).collected


# --- Saving, repeating, resuming ------------------------------------------------------------------------------------


def test_zips_go_from_sb3_to_bridge_and_back_and_lose_nothing(tmp_path):
    def state(model):
        moments = [value for entry in model.policy.optimizer.state_dict()["state"].values() for value in entry.values()]
        numbers = [*model.policy.state_dict().values(), *moments]
        counters = model.num_timesteps, model._n_updates, model.lr_schedule(0.5), model.clip_range(0.5)
        return [np.asarray(number) for number in numbers], counters

    settings = {"learning_rate": lambda remaining: 1e-3 * remaining, "clip_range": lambda remaining: 0.3 * remaining}
    model = make(package=stable_baselines3, **settings).learn(2 * ROLLOUT)
    for package in (bridge, stable_baselines3, bridge):
        model.save(tmp_path / "model")
        loaded = package.PPO.load(tmp_path / "model", env=make_env())
        for a, b in zip(state(model)[0], state(loaded)[0], strict=True):
            np.testing.assert_array_equal(a, b)
        assert state(model)[1] == state(loaded)[1]
        model = loaded.learn(ROLLOUT, reset_num_timesteps=False)
    assert model.num_timesteps == 5 * ROLLOUT
    assert model._n_updates == 5 * SMALL["n_epochs"]


@pytest.mark.slow
def test_a_zip_loads_where_bridge_is_not_installed(tmp_path):
    make().learn(ROLLOUT).save(tmp_path / "model")
    code = (
        "import sys; sys.modules['bridge'] = sys.modules['jax'] = sys.modules['jaxenvs'] = None\n"
        "from stable_baselines3 import PPO\n"
        f"model = PPO.load({str(tmp_path / 'model')!r})\n"
        "print(model.num_timesteps, model.predict(model.observation_space.sample())[0].shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [str(ROLLOUT), "()"], done.stderr


def test_the_same_seed_gives_the_same_bits_and_another_others():
    first, again, other = (
        read_parameters(make(make_env(seed), seed=seed).learn(2 * ROLLOUT).policy) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("wrap", [lambda env: env, VecNormalize], ids=["bare", "VecNormalize"])
def test_a_run_that_was_killed_goes_on_bit_for_bit(wrap, tmp_path):
    def schedule(remaining):
        return 1e-3 * remaining

    whole = make(wrap(make_env()), learning_rate=schedule).learn(6 * ROLLOUT)
    # Killed in the fourth rollout: the checkpoint was written before it.
    killed = make(wrap(make_env()), learning_rate=schedule)
    checkpoint = bridge.RolloutCheckpoint(tmp_path / "checkpoint")

    def kill(locals_, _):
        if locals_["self"].num_timesteps > 3 * ROLLOUT + 5:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        killed.learn(6 * ROLLOUT, callback=[checkpoint, FromFunction(kill)])
    resumed = bridge.load_checkpoint(bridge.PPO, tmp_path / "checkpoint.zip", wrap(make_env(seed=77)))
    assert resumed.num_timesteps == 3 * ROLLOUT
    resumed.learn(6 * ROLLOUT - resumed.num_timesteps, reset_num_timesteps=False)
    np.testing.assert_array_equal(read_parameters(resumed.policy), read_parameters(whole.policy))
    np.testing.assert_array_equal(resumed.key, whole.key)


class FromFunction(BaseCallback):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def _on_step(self):
        return self.function(self.locals, self.globals)


# --- Compiling once -------------------------------------------------------------------------------------------------


def sizes():
    return programs().collect._cache_size(), programs().update._cache_size()


def test_nothing_compiles_after_the_first_iteration_nor_for_a_second_model_of_the_same_shape():
    env = make_env()
    model = make(env).learn(2 * ROLLOUT)
    before = sizes()
    model.learn(3 * ROLLOUT)
    env.set_attr("gravity", 12.0)
    model.learn(ROLLOUT, reset_num_timesteps=False)
    make(seed=5, learning_rate=lambda remaining: 1e-2 * remaining, clip_range=0.3, gamma=0.9).learn(ROLLOUT)
    assert sizes() == before


# --- Learning -------------------------------------------------------------------------------------------------------


def test_it_learns_to_balance_a_pole():
    env = make_vec_env("CartPole-v1", 8, seed=0)
    settings = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98}
    model = bridge.PPO("MlpPolicy", env, engine="xla", learning_rate=1e-3, seed=0, **settings).learn(40_000)
    assert bridge.evaluate(model, "CartPole-v1", 50).mean > 200


@pytest.mark.parametrize("observation_kind", ["discrete", "multi_discrete", "multi_binary"])
@pytest.mark.parametrize("algorithm", [bridge.PPO, bridge.A2C])
def test_every_kind_of_observation_trains_compiled(observation_kind, algorithm):
    env = JaxVecEnv(Counter(observation_kind=observation_kind), N_ENVS)
    model = algorithm("MlpPolicy", env, n_steps=8, policy_kwargs={"net_arch": [8]}, engine="xla", seed=0)
    model.learn(64)
    assert model._n_updates > 0
    assert np.isfinite(read_parameters(model.policy)).all()


@pytest.mark.parametrize("frequency", [-1, 4])
def test_state_dependent_exploration_trains_compiled(frequency):
    env = make_vec_env("Pendulum-v1", N_ENVS, seed=0)
    model = make(env, engine="xla", use_sde=True, sde_sample_freq=frequency).learn(2 * ROLLOUT)
    assert model._n_updates == 2 * SMALL["n_epochs"]
    assert np.abs(model.rollout_buffer.actions).max() > 0.1


@pytest.mark.parametrize(("policy", "observation_kind"), [("CnnPolicy", "image"), ("MultiInputPolicy", "dict")])
def test_images_train_compiled_with_their_channels_first(policy, observation_kind):
    recorder = Recorder()
    env = JaxVecEnv(Counter(observation_kind=observation_kind), 2)
    kwargs = {"features_extractor_kwargs": {"features_dim": 8} if policy == "CnnPolicy" else {"cnn_output_dim": 8}}
    model = bridge.PPO(policy, env, n_steps=8, batch_size=16, n_epochs=1, policy_kwargs=kwargs, engine="xla", seed=0)
    model.learn(32, callback=recorder)
    stepped = model._wrap_env(JaxVecEnv(Counter(observation_kind=observation_kind), 2))
    stepped.seed(0)
    stepped.reset()
    part = (lambda observation: observation) if policy == "CnnPolicy" else (lambda observation: observation["image"])
    for step in recorder.steps:
        observation, _, dones, infos = stepped.step(step["actions"].reshape(2))
        np.testing.assert_array_equal(part(step["new_obs"]), part(observation))
        for lane in np.flatnonzero(dones):
            last = part(step["infos"][lane]["terminal_observation"])
            np.testing.assert_array_equal(last, part(infos[lane]["terminal_observation"]))
    assert part(model.rollout_buffer.observations).shape == (8, 2, 1, 36, 36)
    np.testing.assert_array_equal(part(model._last_obs), part(observation))
    assert bridge.evaluate(model, jaxenvs.TimeLimit(Counter(observation_kind=observation_kind), 5), 3).mean > 0
