"""ReplayBuffer instead of SB3's: the same samples, also in SB3's algorithms."""

import copy
import pickle

import gymnasium
import jax
import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bridge import PrioritizedReplayBuffer, ReplayBuffer
from tests.bridge.replay.histories import ACTION, OBSERVATIONS, History

HAS_N_STEP = hasattr(buffers, "NStepReplayBuffer")


def make(space="vector", size=36, num_envs=3, cls=ReplayBuffer, **kwargs):
    return cls(size, OBSERVATIONS[space], ACTION, device="cpu", n_envs=num_envs, **kwargs)


def assert_same_samples(ours, theirs, **kwargs):
    samples = []
    for buffer in (ours, theirs):
        np.random.seed(0)  # noqa: NPY002
        samples.append(buffer.sample(64, **kwargs))
    assert type(samples[0]) is type(samples[1])
    for name, our, their in zip(samples[1]._fields, *samples):
        assert (our is None) == (their is None), name
        for our_leaf, their_leaf in zip(jax.tree.leaves(our), jax.tree.leaves(their)):
            assert our_leaf.dtype == their_leaf.dtype, name
            assert our_leaf.shape == their_leaf.shape, name
            np.testing.assert_array_equal(our_leaf, their_leaf, err_msg=name)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("space", OBSERVATIONS)
@pytest.mark.parametrize("handle_timeout_termination", [True, False])
def test_samples_are_those_of_sb3_from_the_same_seed(space, num_envs, handle_timeout_termination):
    """Through wrap-arounds, and where environments are reset between two steps."""
    settings = {"num_envs": num_envs, "handle_timeout_termination": handle_timeout_termination}
    ours = make(space, **settings)
    theirs = make(space, cls=buffers.DictReplayBuffer if space == "dict" else buffers.ReplayBuffer, **settings)
    history = History(num_envs, OBSERVATIONS[space], 0)
    for step in range(40):
        transition = history.next()
        ours.add(*transition)
        theirs.add(*copy.deepcopy(transition))
        if step % 7 == 6:
            history.reset([0])
        if step in (0, 5, 11, 12, 30, 39):
            assert_same_samples(ours, theirs)
            assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())


with_n_steps = pytest.mark.skipif(not HAS_N_STEP, reason="this version of Stable-Baselines3 has no n-step returns")


@with_n_steps
@pytest.mark.parametrize("num_envs", [1, 3])
def test_n_step_samples_are_those_of_sb3(num_envs):
    ours = make(num_envs=num_envs, n_steps=3, gamma=0.9)
    theirs = make(num_envs=num_envs, cls=buffers.NStepReplayBuffer, n_steps=3, gamma=0.9)
    history = History(num_envs, OBSERVATIONS["vector"], 1)
    for _ in range(50):
        transition = history.next()
        ours.add(*transition)
        theirs.add(*transition)
        assert_same_samples(ours, theirs)


@with_n_steps
def test_n_step_samples_of_dict_observations_stop_at_the_end_of_an_episode():
    buffer = make("dict", num_envs=1, n_steps=4, gamma=0.5)
    history = History(1, OBSERVATIONS["dict"], 2)
    history.fill(30, buffer)
    samples = buffer.sample(200)
    first, last = (
        part["which"].numpy()[:, 0].astype(int) for part in (samples.observations, samples.next_observations)
    )
    assert (first // 16 == last // 16).all()
    np.testing.assert_array_equal(samples.discounts[:, 0], 0.5 ** (last - first))
    assert set(last - first) == {1, 2, 3, 4}


@pytest.mark.parametrize("space", ["vector", "dict"])
def test_vec_normalize_is_honoured_as_by_sb3(space):
    class Env(gymnasium.Env):
        observation_space, action_space = OBSERVATIONS["vector"], ACTION

    if space == "dict":
        observation_space = spaces.Dict({"a": OBSERVATIONS["vector"]})
        Env.observation_space = observation_space
    else:
        observation_space = OBSERVATIONS["vector"]
    env = VecNormalize(DummyVecEnv([Env]))
    for moments in env.obs_rms.values() if space == "dict" else [env.obs_rms]:
        moments.mean, moments.var = np.full(3, 5.0), np.full(3, 4.0)
    env.ret_rms.var = np.float64(9.0)
    ours = ReplayBuffer(10, observation_space, ACTION, device="cpu")
    cls = buffers.DictReplayBuffer if space == "dict" else buffers.ReplayBuffer
    theirs = cls(10, observation_space, ACTION, device="cpu")
    history = History(1, observation_space, 0)
    history.fill(13, ours, theirs)
    assert_same_samples(ours, theirs, env=env)


def test_samples_are_in_memory_of_their_own():
    buffer, history = make(), History(3, OBSERVATIONS["vector"], 0)
    buffer.add(*history.next())
    before = buffer.next_observations.copy(), buffer.observations.copy(), buffer.actions.copy(), buffer.rewards.copy()
    for tensor in buffer.sample(8)[:5]:
        tensor.fill_(-7)
    for old, new in zip(before, (buffer.next_observations, buffer.observations, buffer.actions, buffer.rewards)):
        np.testing.assert_array_equal(old, new)


def test_nan_in_observations_does_not_end_an_episode():
    buffer, observation = make(num_envs=1), np.array([[1, np.nan, 2]], np.float32)
    for _ in range(3):
        buffer.add(observation, observation, np.zeros((1, 2)), np.zeros(1), np.zeros(1, bool), [{}])
    assert buffer.sample_slices(2, 3).mask.all()


@pytest.mark.skipif(HAS_N_STEP, reason="this version of Stable-Baselines3 has n-step returns")
def test_n_step_returns_that_no_algorithm_would_discount_are_refused():
    with pytest.raises(ValueError, match="n_steps must be 1 with this version of Stable-Baselines3, got 3"):
        make(n_steps=3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [(name, 0, f"{name} must be a positive int, got 0") for name in ("buffer_size", "n_envs", "n_steps")]
    + [("n_steps", value, "n_steps must be a positive int, got ") for value in ("3", None)]
    + [("storage", "disk", "storage must be one of 'ram', 'memmap', got 'disk'")],
)
def test_an_argument_out_of_range_is_named(name, value, message):
    arguments = {"buffer_size": 10, "n_envs": 1, name: value}
    with pytest.raises(ValueError, match=message):
        ReplayBuffer(arguments.pop("buffer_size"), OBSERVATIONS["vector"], ACTION, **arguments)


def test_an_empty_buffer_says_so():
    buffer = make()
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(4)
    buffer.add(*History(3, OBSERVATIONS["vector"], 0).next())
    buffer.reset()
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(4)


def test_a_pickled_buffer_goes_on_where_it_was():
    buffer, history = make(), History(3, OBSERVATIONS["vector"], 0)
    history.fill(15, buffer)
    loaded = pickle.loads(pickle.dumps(buffer))
    history.fill(3, buffer, loaded)
    assert_same_samples(loaded, buffer)


def num_bytes(holder):
    return sum(each.nbytes for each in vars(holder).values() if isinstance(each, np.ndarray))


def test_memory_is_that_of_sb3s_and_a_tenth_more_with_slices():
    arguments = (3_000, spaces.Box(-1, 1, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32))
    theirs = buffers.ReplayBuffer(*arguments, device="cpu")
    ours = ReplayBuffer(*arguments, device="cpu")
    observation, done = np.zeros((1, 17), np.float32), np.zeros(1, bool)
    for step in range(3_000):
        done[0] = step % 200 == 199
        ours.add(observation, observation, np.zeros((1, 6)), np.zeros(1), done, [{}])
    assert num_bytes(ours) == num_bytes(theirs)
    ours.sample_slices(2, 2)
    assert num_bytes(ours) + num_bytes(ours._episodes) <= 1.1 * num_bytes(theirs)


def dqn(**kwargs):
    env = make_vec_env("CartPole-v1", 2, seed=0)
    settings = {"learning_starts": 50, "train_freq": 2, "gradient_steps": 2, "batch_size": 16, "seed": 0}
    return stable_baselines3.DQN("MlpPolicy", env, device="cpu", buffer_size=200, **settings, **kwargs)


def sac(**kwargs):
    env = VecNormalize(make_vec_env("Pendulum-v1", 2, seed=0))
    settings = {"learning_starts": 50, "train_freq": 2, "batch_size": 16, "seed": 0, "policy_kwargs": {"net_arch": [8]}}
    return stable_baselines3.SAC("MlpPolicy", env, device="cpu", buffer_size=100, **settings, **kwargs)


@pytest.mark.thorough
@pytest.mark.parametrize("make_model", [dqn, sac])
def test_stock_algorithms_learn_the_very_same_on_it(make_model):
    # The second `learn` resets the environments.
    models = [make_model(replay_buffer_class=cls).learn(300).learn(100) for cls in (ReplayBuffer, buffers.ReplayBuffer)]
    for ours, theirs in zip(*(model.policy.state_dict().values() for model in models)):
        np.testing.assert_array_equal(ours, theirs)


def test_optimize_memory_usage_means_what_it_means_in_sb3():
    settings = {"optimize_memory_usage": True, "handle_timeout_termination": False, "num_envs": 2}
    ours, theirs = (make(cls=cls, **settings) for cls in (ReplayBuffer, buffers.ReplayBuffer))
    history = History(2, OBSERVATIONS["vector"], 0)
    for _ in range(45):
        history.fill(1, ours, theirs)
        assert_same_samples(ours, theirs)
        assert_same_samples(ReplayBuffer.from_sb3(theirs), theirs)
    slices = ours.sample_slices(200, 3)
    newest = (ours.pos - 1) % ours.buffer_size
    assert (slices.indices // 2 != ours.pos).all()  # its observation was overwritten by the newest next observation
    assert (slices.indices[:, :-1] // 2 != newest).all()
    assert (slices.observations[:, 1:] == slices.next_observations[:, :-1]).all()
    rows = np.arange(3.0)[:, None].repeat(2, 1)
    observations, actions, no = rows[..., None].repeat(3, 2), rows[..., None].repeat(2, 2), rows < 0
    ours.add_rollout(observations, actions, rows, no, no, observations + 1)
    for step in range(3):
        theirs.add(observations[step], observations[step] + 1, actions[step], rows[step], no[step], [{}, {}])
    assert_same_samples(ours, theirs)
    with pytest.raises(ValueError, match="simultaneously"):
        make(optimize_memory_usage=True)
    refusal = "optimize_memory_usage must be False with n_steps above 1" if HAS_N_STEP else "n_steps must be 1"
    with pytest.raises(ValueError, match=refusal):
        make(optimize_memory_usage=True, n_steps=3, handle_timeout_termination=False)


@with_n_steps
def test_whoever_asks_finds_the_class_of_sb3s_that_it_stands_for():
    assert isinstance(make(n_steps=3), buffers.NStepReplayBuffer)
    by_position = ReplayBuffer(36, OBSERVATIONS["dict"], ACTION, "cpu", 3, False, True, 3)
    assert isinstance(by_position, buffers.NStepReplayBuffer)
    assert isinstance(make("dict"), buffers.DictReplayBuffer)
    for other in (make(), make(cls=PrioritizedReplayBuffer)):
        assert not isinstance(other, buffers.NStepReplayBuffer | buffers.DictReplayBuffer)
    for buffer in (make(), make(n_steps=3), make("dict"), make(cls=PrioritizedReplayBuffer)):
        assert isinstance(buffer, ReplayBuffer)
        assert type(copy.deepcopy(buffer)) is type(pickle.loads(pickle.dumps(buffer))) is type(buffer)
