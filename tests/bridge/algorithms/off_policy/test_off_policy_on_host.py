"""bridge.DQN, SAC, TD3 and DDPG where environments or arguments keep the loop on the host: SB3's training."""

import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common import noise
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper, VecFrameStack, VecNormalize

import bridge
from bridge.algorithms.common import predicting
from bridge.engine.acting import Actor
from bridge.engine.update import compiled_update
from bridge.sb3 import NStepReplayBuffer
from jaxenvs import learn
from tests.bridge.algorithms.cases import Walk, assert_equal, state_of
from tests.bridge.small_models import with_n_steps
from tests.environments import Counter

SETTINGS = {
    "buffer_size": 200,
    "learning_starts": 10,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "seed": 0,
    "device": "cpu",
}
NORMAL = noise.NormalActionNoise(np.zeros(2), np.full(2, 0.3))
DRIFTING = noise.OrnsteinUhlenbeckActionNoise(np.zeros(2), np.full(2, 0.3), initial_noise=np.full(2, 0.5))


def make_pair(
    name, n_envs=1, observation="vector", policy="MlpPolicy", wrap=lambda env: env, net_arch=(8,), **settings
):
    """Return the same model of bridge and of SB3, without noise in the updates, which differs in PyTorch and JAX."""
    kind = "discrete" if name == "DQN" else "box"
    if name == "TD3":
        settings = {"target_policy_noise": 0.0, **settings}
    kwargs = {"net_arch": list(net_arch), **settings.pop("policy_kwargs", {})}
    models = []
    for package in (bridge, stable_baselines3):
        env = wrap(DummyVecEnv([lambda: Walk(kind, observation)] * n_envs))
        cls = getattr(package, name)
        models.append(cls(policy, env, policy_kwargs=dict(kwargs), **{**SETTINGS, **settings}))
    return models


def assert_same(ours, stock, total=60, tolerance=1e-4):
    """Train both with the same random numbers, and compare what they have learnt and logged."""
    logs = []
    for model in (ours, stock):
        model.set_logger(configure(None, []))
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        model.action_space.seed(0)
        model.learn(total, log_interval=None)
        logs.append({name: value for name, value in model.logger.name_to_value.items() if "time/" not in name})
    mine, theirs = logs
    states = [state_of(model, with_store=False) for model in (ours, stock)]
    states[0].pop("key")
    assert ours._n_updates == stock._n_updates > 0
    assert_equal(*states, rtol=20 * tolerance, atol=tolerance)
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(mine[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.thorough(but=["defaults", "n_steps-gamma"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train_freq": 1, "gradient_steps": 3, "tau": 0.3, "target_update_interval": 7},
        {"train_freq": (2, "episode"), "gradient_steps": -1},
        {"n_envs": 3, "train_freq": 2, "gradient_steps": -1, "learning_starts": 20},
        pytest.param({"n_steps": 3, "gamma": 0.8}, marks=with_n_steps),
        {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}},
        {"learning_rate": lambda left: 1e-2 * left, "exploration_fraction": 0.5, "exploration_final_eps": 0.3},
        {
            "max_grad_norm": 0.1,
            "policy_kwargs": {"optimizer_class": torch.optim.RMSprop, "activation_fn": torch.nn.Tanh},
        },
        {"wrap": lambda env: VecNormalize(env, gamma=0.9), "n_envs": 2},
        {"wrap": lambda env: VecFrameStack(env, 3), "n_envs": 2},
        {"observation": "dict", "policy": "MultiInputPolicy"},
    ],
    ids=lambda settings: "-".join(settings) or "defaults",
)
def test_dqn_learns_what_sb3s_learns(settings):
    ours, stock = make_pair("DQN", **settings)
    assert ours.plan.updates
    assert ours.plan.actor is not None
    assert_same(ours, stock)


class NoDone(VecEnvWrapper):
    """Lets no episode end."""

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        observation, rewards, dones, infos = self.venv.step_wait()
        return observation, rewards, np.zeros_like(dones), infos


def test_episodes_that_a_wrapper_hides_are_counted_as_in_sb3():
    counted = []
    for package in (bridge, stable_baselines3):
        env = NoDone(bridge.GymVecEnv(SyncVectorEnv([lambda: Walk("discrete")] * 2)))
        model = package.DQN("MlpPolicy", env, **SETTINGS | {"learning_starts": 100})
        model.learn(40)
        timeouts = model.replay_buffer.timeouts[:20].tolist()  # which end n-step returns
        counted.append(([(episode["r"], episode["l"]) for episode in model.ep_info_buffer], timeouts))
    assert counted[0] == counted[1]
    assert all(map(np.any, counted[0]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("TD3", {"action_noise": NORMAL, "policy_delay": 3, "gradient_steps": 2}),
        ("TD3", {"action_noise": DRIFTING, "train_freq": (1, "episode"), "gradient_steps": -1}),
        ("TD3", {"n_envs": 2, "action_noise": DRIFTING, "train_freq": 4, "gradient_steps": 130}),
        ("DDPG", {"action_noise": NORMAL, "tau": 0.1, "policy_kwargs": {"net_arch": {"pi": [5], "qf": [6, 7]}}}),
    ],
    ids=str,
)
def test_td3_and_ddpg_learn_what_sb3s_learn(name, settings):
    ours, stock = make_pair(name, **settings)
    assert ours.plan.updates
    assert_same(ours, stock, total=40 if settings.get("gradient_steps") != 130 else 16, tolerance=1e-3)


@pytest.fixture
def without_noise(monkeypatch):
    """SAC that draws zeros, for acting and in updates, by SB3 and by ours."""
    drawn = learn.SAC.noise

    def zeros(self, *arguments):
        return torch.utils._pytree.tree_map(lambda leaf: 0 * leaf, drawn(self, *arguments))

    monkeypatch.setattr(learn.SAC, "noise", zeros)
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda shape, **_: torch.zeros(shape))
    monkeypatch.setattr(Actor, "draw_noise", lambda self, num_envs, n_steps, _: np.zeros((n_steps, num_envs, 2), "f4"))
    compiled_update.cache_clear()
    yield
    compiled_update.cache_clear()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings",
    [
        {"ent_coef": "auto_0.1", "target_entropy": -0.5, "action_noise": NORMAL},
        pytest.param({"ent_coef": "auto_0.1", "n_steps": 2}, marks=with_n_steps),
        {"ent_coef": 0.2, "n_envs": 2, "policy_kwargs": {"n_critics": 3, "share_features_extractor": True}},
        {"target_update_interval": 3, "train_freq": (1, "episode"), "gradient_steps": -1, "tau": 0.3},
    ],
    ids=str,
)
def test_sac_learns_what_sb3s_learns(settings, without_noise):
    ours, stock = make_pair("SAC", **settings)
    assert ours.plan.updates
    assert_same(ours, stock, total=40, tolerance=1e-3)


# --- Arguments that no comparison shows -----------------------------------------------------------------------------


def make(name="DQN", **settings):
    return make_pair(name, **settings)[0]


@with_n_steps
@pytest.mark.parametrize(
    "settings",
    [
        {"n_steps": 2, "replay_buffer_class": ReplayBuffer},
        {"replay_buffer_class": NStepReplayBuffer},
        {"replay_buffer_class": NStepReplayBuffer, "replay_buffer_kwargs": {"n_steps": 2, "gamma": 0.5}},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:`n_steps=2` is ignored")
def test_a_class_of_buffers_of_sb3s_means_what_it_does_there(settings):
    ours, stock = make_pair("DQN", **settings)
    assert isinstance(ours.replay_buffer, bridge.ReplayBuffer)
    assert isinstance(ours.replay_buffer, NStepReplayBuffer) == isinstance(stock.replay_buffer, NStepReplayBuffer)
    assert_same(ours, stock)


@with_n_steps
def test_the_discount_of_several_steps_is_the_buffers_in_a_program_too():
    env = bridge.JaxVecEnv(Counter(action_kind="discrete"), 2, 0)
    buffer = {"replay_buffer_class": NStepReplayBuffer, "replay_buffer_kwargs": {"n_steps": 2, "gamma": 0.5}}
    model = bridge.DQN("MlpPolicy", env, gamma=0.9, **buffer, **SETTINGS)
    assert model.plan.wrapped_env is not None
    assert (model._settings_now().gamma, model._settings_now().n_steps) == (0.5, 2)


@pytest.mark.thorough
def test_hindsight_replay_learns_what_sb3s_learns():
    kwargs = {"replay_buffer_class": stable_baselines3.HerReplayBuffer, "replay_buffer_kwargs": {"n_sampled_goal": 2}}
    ours, stock = make_pair("DQN", observation="goal", policy="MultiInputPolicy", **kwargs)
    assert type(ours.replay_buffer) is bridge.HerReplayBuffer
    assert str(ours.plan) == "collecting: acting compiled, environments stepped on the host\nupdating: compiled"
    assert_same(ours, stock, total=40, tolerance=1e-3)


class SmallCnn(BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, 4)
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 8, 8), torch.nn.Flatten(), torch.nn.Linear(32, 4))

    def forward(self, observations):
        return self.layers(observations)


@pytest.mark.thorough  # images in compiled trainings of A2C: test_on_policy_fallbacks.py
def test_images_are_learnt_from_in_a_compiled_training_if_all_is_to_be_compiled():
    env = bridge.JaxVecEnv(Counter(observation_kind="image", action_kind="discrete"), 2, 0)
    settings = {**SETTINGS, "policy_kwargs": {"features_extractor_class": SmallCnn, "net_arch": [8]}}
    model = bridge.DQN("CnnPolicy", env, engine="xla", **settings).learn(40)
    assert not model.plan.reasons
    assert model._n_updates > 0
    count = model.replay_buffer.observations[:20].reshape(20, 2, -1)
    np.testing.assert_array_equal(model.replay_buffer.next_observations[:20].reshape(20, 2, -1), count + 1)


@pytest.mark.thorough
@pytest.mark.parametrize("use_sde_at_warmup", [False, True])
def test_state_dependent_exploration_keeps_its_noise_for_as_long_as_it_is_told(use_sde_at_warmup):
    env = bridge.JaxVecEnv(Counter(length=100, action_kind="box"), 2, 0)
    network = {"net_arch": [2], "log_std_init": -1.0, "activation_fn": torch.nn.Tanh}
    settings = {**SETTINGS, "learning_starts": 16, "policy_kwargs": network, "learning_rate": 0.0}
    settings |= {"use_sde": True, "sde_sample_freq": 4, "train_freq": 8, "gradient_steps": 0}
    model = bridge.SAC("MlpPolicy", env, use_sde_at_warmup=use_sde_at_warmup, **settings).learn(48)
    assert model.plan.wrapped_env is not None
    with torch.no_grad():
        mean, _, other = model.actor.get_action_dist_params(torch.as_tensor(model.replay_buffer.observations[:24, 0]))
    noise = np.arctanh(model.replay_buffer.actions[:24, 0].astype(float)) - mean.numpy()

    def distance(first, last):
        """Return how far the noise of some steps is from the noise of one matrix."""
        latent = other["latent_sde"].numpy()[first:last].astype(float)
        matrix = np.linalg.lstsq(latent, noise[first:last], rcond=None)[0]
        return np.abs(noise[first:last] - latent @ matrix).max()

    assert max(distance(first, first + 4) for first in range(8, 24, 4)) < 1e-3
    assert min(distance(first, first + 8) for first in (8, 16)) > 1e-2
    assert (max(distance(first, first + 4) for first in (0, 4)) < 1e-3) == use_sde_at_warmup


@pytest.mark.thorough
def test_noises_of_environments_may_differ():
    each = [noise.NormalActionNoise(np.zeros(2), np.full(2, sigma)) for sigma in (0.0, 0.8)]
    together = noise.VectorizedActionNoise(each[0], 2)
    together.noises = each
    env = bridge.JaxVecEnv(Counter(length=100, action_kind="box"), 2, 0)
    settings = {**SETTINGS, "learning_starts": 0, "gradient_steps": 0, "policy_kwargs": {"net_arch": [8]}}
    model = bridge.TD3("MlpPolicy", env, action_noise=together, **settings).learn(40)
    with torch.no_grad():
        greedy = model.actor(torch.as_tensor(model.replay_buffer.observations[:20].reshape(40, 2))).reshape(20, 2, 2)
    added = np.abs(model.replay_buffer.actions[:20] - greedy.numpy())
    assert added[:, 0].max() < 1e-5
    assert added[:, 1].mean() > 0.2


def test_predict_explores_as_often_as_sb3s_does(monkeypatch):
    model = make().learn(12)
    model.exploration_rate = 0.5
    monkeypatch.setattr(predicting, "CALLS_BEFORE_COMPILING", 2)
    observation = np.zeros(2, np.float32)
    greedy = model.predict(observation, deterministic=True)[0]
    for given in (observation, torch.as_tensor(observation), jnp.asarray(observation)):
        actions = [model.predict(given)[0] for _ in range(120)]
        assert type(actions[0]) is type(model.predict(given, deterministic=True)[0])
        # A third of the random ones is greedy too.
        assert 15 < sum(int(action) != int(greedy) for action in actions) < 65
        model.exploration_rate = 0.0
        assert all(int(model.predict(given)[0]) == int(greedy) for _ in range(20))
        model.exploration_rate = 0.5


@pytest.mark.parametrize("library", [bridge, stable_baselines3])
def test_a_network_does_not_run_where_predict_explores(library):
    """Its code may be the user's, and count."""
    model = library.DQN("MlpPolicy", Walk("discrete"), policy_kwargs={"net_arch": [8]}, seed=0)
    counts, asked = [], []
    predict = model.policy._predict

    def counted(observation, deterministic=False):
        asked.append(deterministic)
        return predict(observation, deterministic=deterministic)

    model.policy._predict = counted
    for model.exploration_rate in (1.0, 0.0):
        for batch in (np.zeros(2, np.float32), np.zeros((3, 2), np.float32)):
            action, _ = model.predict(batch)
            assert action.shape == batch.shape[:-1]
            assert action.dtype == np.int64
            counts.append(len(asked))
    assert counts == [0, 0, 1, 2]
    assert asked == [False, False]


def test_what_an_environment_raises_comes_through_and_training_goes_on():
    model = make()
    step, calls = Walk.step, []

    def failing(self, action):
        calls.append(1)
        if len(calls) == 25:
            raise RuntimeError("a fuse has blown")
        return step(self, action)

    model.env.envs[0].unwrapped.step = failing.__get__(model.env.envs[0].unwrapped)
    with pytest.raises(RuntimeError, match="a fuse has blown"):
        model.learn(60)
    assert (model.num_timesteps, model.replay_buffer.size()) == (24, 24)
    model.env.reset()
    model._last_obs = None
    model.learn(40)
    assert model.replay_buffer.size() == 64


def test_nan_in_an_update_on_the_host_is_an_error_and_those_from_before_are_kept():
    model = make().learn(20)
    before = state_of(model, with_store=False)
    model.replay_buffer.rewards[:] = np.nan
    with pytest.raises(ValueError, match=r"parameters of q_net NaN.*from before the update were kept"):
        model.learn(20, reset_num_timesteps=False)
    for name, value in model.policy.state_dict().items():
        np.testing.assert_array_equal(value, before[name], name)
