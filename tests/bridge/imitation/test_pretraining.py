"""pretrain: a plain PyTorch loop with the same rows; what it refuses; episodes to learn from; and DAgger."""

import copy

import jax
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from bridge import NotCompilable, make_vec_env
from bridge.engine import learner
from bridge.imitation.pretraining import recorded
from jaxenvs import TimeLimit
from tests.bridge.algorithms.cases import assert_equal, make, make_env
from tests.environments import Counter
from tests.masked_environments import MASKS, Locks

SIZE, BATCH, EPOCHS, SEED, LR = 90, 16, 3, 5, 1e-2


def data_for(model, rng=None):
    """Random observations, and actions that depend on them."""
    rng = np.random.default_rng(0) if rng is None else rng
    observations = rng.normal(size=(SIZE, *model.observation_space.shape)).astype(np.float32)
    space, signal = model.action_space, np.tanh(observations.reshape(SIZE, -1)[:, :1])
    if hasattr(space, "n"):
        actions = (signal[:, 0] > 0).astype(np.int64) * (space.n - 1)
    else:
        low, high = space.low.astype(float), space.high.astype(float)
        actions = (low + (0.5 + 0.4 * signal) * (high - low)).astype(np.float32)
    return {"observations": observations, "actions": actions}


def torch_loss(name, model, observation, action):
    policy = model.policy
    if name in ("PPO", "A2C", "MaskablePPO"):
        return -policy.evaluate_actions(observation, action)[1].mean()
    if name in ("DQN", "PQN"):
        values = policy.q_net(observation) if name == "DQN" else policy.q_values(observation)
        return torch.nn.functional.cross_entropy(values, action)
    low, high = (torch.as_tensor(bound) for bound in (model.action_space.low, model.action_space.high))
    scaled = 2 * (action - low) / (high - low) - 1
    if name == "TD3":
        return torch.nn.functional.mse_loss(policy.actor(observation), scaled)
    mean, log_std, kwargs = policy.actor.get_action_dist_params(observation)
    return -policy.actor.action_dist.proba_distribution(mean, log_std, **kwargs).log_prob(scaled).mean()


def train_in_torch(name, model, data):
    """The same loop in PyTorch: its losses by epoch, and the loss of the rows that are held out after each."""
    rng = np.random.default_rng(SEED)
    observations, actions = (torch.as_tensor(each) for each in (data["observations"], data["actions"]))
    test, train = np.split(rng.permutation(SIZE), [9])
    acting = {"TD3": "actor", "SAC": "actor", "DQN": "q_net"}.get(name)
    parameters = (getattr(model.policy, acting) if acting else model.policy).parameters()
    optimizer = torch.optim.Adam(parameters, lr=LR, eps=1e-5)
    losses, held_out = [], []
    for _ in range(EPOCHS):
        size, steps = len(train), []
        for rows in rng.permutation(size)[: size - size % BATCH].reshape(-1, BATCH):
            at = train[rows]
            loss = torch_loss(name, model, observations[at], actions[at])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(loss.item())
        losses.append(np.mean(steps))
        with torch.no_grad():
            held_out.append(torch_loss(name, model, observations[test], actions[test]).item())
    return losses, held_out


@pytest.mark.thorough(but=["PPO", "TD3", "large PQN"])
@pytest.mark.parametrize("case", ["PPO", "A2C", "PQN", "DQN", "SAC", "TD3", "large PQN", "large SAC"])
def test_it_is_a_plain_loop_in_pytorch(case, monkeypatch):
    size, _, name = case.rpartition(" ")
    if size:
        monkeypatch.setattr(learner, "SPLIT_FROM", 0)  # as if it were large
        monkeypatch.setattr(learner, "SPLIT_ON_POLICY_FROM", 0)
    ours, stock = make(name), make(name)
    before = copy.deepcopy(ours.policy.state_dict())
    data = data_for(ours)
    history = bridge.pretrain(ours, data, n_epochs=EPOCHS, batch_size=BATCH, learning_rate=LR, seed=SEED, held_out=0.1)
    losses, held_out = train_in_torch(name, stock, data)
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(history["held_out_loss"], held_out, rtol=1e-3, atol=1e-5)
    state, expected = ours.policy.state_dict(), dict(stock.policy.state_dict())
    for key in [key for key in expected if "_target" in key and key.replace("_target", "") in expected]:
        if not key.startswith("critic"):
            expected[key] = expected[key.replace("_target", "")]  # what acts, and its target
    assert_equal(*({key: each.numpy() for key, each in one.items()} for one in (state, expected)), rtol=1e-3, atol=1e-4)
    assert any(not torch.equal(before[key], state[key]) for key in state)
    optimizer = getattr(ours.policy, "actor", ours.policy).optimizer
    assert not any(np.abs(part).sum() for entry in optimizer.state.values() for part in entry.values())
    steps = 2 * ours.n_envs * getattr(ours, "n_steps", 8)
    assert ours.learn(steps).num_timesteps >= steps


def test_patience_ends_it_and_keeps_the_best_weights():
    model, rng = make("PPO"), np.random.default_rng(0)
    data = data_for(model)
    data["actions"] = rng.integers(0, 2, SIZE)  # nothing to learn
    history = bridge.pretrain(model, data, n_epochs=200, batch_size=8, learning_rate=0.05, held_out=0.3, patience=2)
    held_out = history["held_out_loss"]
    assert len(held_out) < 200
    assert held_out.argmin() == len(held_out) - 3
    test = np.split(np.random.default_rng(0).permutation(SIZE), [27])[0]
    with torch.no_grad():
        loss = torch_loss("PPO", model, *(torch.as_tensor(data[each][test]) for each in ("observations", "actions")))
    np.testing.assert_allclose(loss, held_out.min(), rtol=1e-4)


def test_a_replay_buffer_is_data_too():
    model = make("SAC").learn(48)
    buffer = model.replay_buffer
    size = buffer.size()
    other = make("SAC")
    history = bridge.pretrain(other, buffer, n_epochs=1, batch_size=4, held_out=0)
    assert np.isnan(history["held_out_loss"]).all()
    observations = buffer.observations[:size].reshape(-1, *buffer.obs_shape)
    actions = model.policy.unscale_action(buffer.actions[:size].reshape(-1, *model.action_space.shape))
    twin = make("SAC")
    same = bridge.pretrain(
        twin, {"observations": observations, "actions": actions}, n_epochs=1, batch_size=4, held_out=0
    )
    np.testing.assert_allclose(history["loss"], same["loss"], rtol=1e-5)


def numbered(cls, **settings):
    """A buffer of six rows into which nine were written; a row's action tells which observation it belongs to."""
    box = spaces.Box(-100, 100, (1,), np.float32)
    buffer = cls(6, box, spaces.Discrete(100), device="cpu", **settings)
    for number in np.arange(9)[:, None]:
        buffer.add(number, number + 1, number, number[0], np.zeros(1), [{}])
    return buffer


@pytest.mark.parametrize("cls", [bridge.ReplayBuffer, buffers.ReplayBuffer])
def test_the_row_without_its_observation_is_left_out(cls):
    buffer = numbered(cls, optimize_memory_usage=True, handle_timeout_termination=False)
    observations, actions = recorded(make("DQN"), buffer)
    np.testing.assert_array_equal(observations[:, 0], actions)
    assert actions.tolist() == [4, 5, 6, 7, 8]


def test_rows_that_files_have_lost_are_left_out(tmp_path):
    settings = {"storage": "memmap", "path": tmp_path}
    buffer = numbered(bridge.ReplayBuffer, **settings)
    buffer.flush()
    buffer.add(*(np.full((1, 1), 9.0) for _ in range(3)), np.zeros(1), np.zeros(1), [{}])
    del buffer
    box = spaces.Box(-100, 100, (1,), np.float32)
    buffer = bridge.ReplayBuffer(6, box, spaces.Discrete(100), device="cpu", **settings)
    assert recorded(make("DQN"), buffer)[1].tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_a_replay_buffer_of_discrete_observations_is_data_too(kind):
    env = bridge.JaxVecEnv(TimeLimit(Counter(5, kind, "discrete"), 7), 2, 0)
    model, observation = make("DQN", env), env.reset()
    for _ in range(24):
        action = np.array([model.action_space.sample() for _ in range(2)])
        following, reward, done, infos = env.step(action)
        model.replay_buffer.add(observation, following, action, reward, done, infos)
        observation = following
    assert np.isfinite(bridge.pretrain(model, model.replay_buffer, n_epochs=1)["loss"]).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"data": 3}, TypeError, "data must be a replay buffer or have `observations` and `actions`, got 3"),
        ({"actions": np.zeros((SIZE, 2))}, ValueError, r"actions must have the shape \(n, \), and observations n rows"),
        ({"actions": np.full(SIZE, 2)}, ValueError, r"actions must lie in Discrete\(2\), got numbers from 2 to 2"),
        (
            {"actions": np.full(SIZE, 0.5)},
            ValueError,
            r"actions must lie in Discrete\(2\), got numbers from 0.5 to 0.5",
        ),
        ({"held_out": 1.0}, ValueError, r"held_out must lie in \[0, 1\), got 1.0"),
        ({"held_out": "0.1"}, ValueError, "held_out must be a finite number, got '0.1'"),
        ({"learning_rate": -1}, ValueError, "learning_rate must be a finite number, at least 0, got -1"),
        ({"seed": -1}, ValueError, "seed must be a non-negative int, got -1"),
        ({"patience": 2, "held_out": 0}, ValueError, "patience needs a held_out of more than 0"),
        ({"model": None}, TypeError, "model must be an algorithm of jaxenvs.sb3"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else None,
)
def test_what_it_cannot_learn_from_is_refused(change, error, message):
    model = make("PPO")
    data = data_for(model)
    if "actions" in change:
        data["actions"] = change["actions"]
    given = {"model": model, "data": data, **{name: value for name, value in change.items() if name != "actions"}}
    with pytest.raises(error, match=message):
        bridge.pretrain(given.pop("model"), given.pop("data"), **given)


def test_recurrent_policies_and_what_pytorch_runs_are_refused():
    with pytest.raises(NotCompilable, match="A recurrent policy cannot be pretrained"):
        bridge.pretrain(make("RecurrentPPO"), {})
    with pytest.raises(NotCompilable, match=r'The model has engine="torch"'):
        bridge.pretrain(make("PPO", engine="torch"), {})


# --- Episodes and DAgger ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalized", [False, True])
def test_episodes_are_whole_and_their_observations_are_the_environments(normalized):
    env = make_vec_env("CartPole-v1", 4, seed=0, env_kwargs={"max_episode_steps": 12})
    model = make("PPO", VecNormalize(env) if normalized else env).learn(128)
    episodes = bridge.record_episodes(model, make_vec_env("CartPole-v1", 3, env_kwargs={"max_episode_steps": 12}), 7)
    ends = np.flatnonzero(episodes["terminations"] | episodes["truncations"])
    assert episodes["episode"][ends].tolist() == [*range(7)]
    assert len(ends) == 7
    assert ends[-1] == len(episodes["actions"]) - 1
    first = np.concatenate([[0], ends[:-1] + 1])
    assert np.abs(episodes["observations"][first]).max() <= 0.05  # where CartPole begins, not normalized
    assert (np.diff(np.append(first, ends[-1] + 1)) <= 12).all()
    seen = model.env.normalize_obs(episodes["observations"]) if normalized else episodes["observations"]
    np.testing.assert_array_equal(model.predict(seen, deterministic=True)[0], episodes["actions"])
    assert bridge.pretrain(make("PPO"), episodes, n_epochs=1)["loss"].shape == (1,)


def test_recording_in_the_models_environment_leaves_its_statistics():
    model = make("PPO", VecNormalize(make_vec_env("CartPole-v1", 4, seed=0, env_kwargs={"max_episode_steps": 12})))
    model.env.reset()
    before = copy.deepcopy(model.env.obs_rms)
    bridge.record_episodes(model, model.env, 4)
    np.testing.assert_array_equal(model.env.obs_rms.mean, before.mean)
    assert model.env.obs_rms.count == before.count
    assert model.env.training


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_an_expert_is_asked_where_the_learner_goes(name):
    class Expert:
        """Pushes to where the pole falls."""

        def __init__(self):
            self.asked = []

        def predict(self, observation, deterministic):
            assert deterministic
            self.asked.append(observation)
            return (observation[:, 2] + observation[:, 3] > 0).astype(np.int64), None

        def get_vec_normalize_env(self):
            return None

    env = make_vec_env("CartPole-v1", 4, seed=0)
    learning_rate = {"learning_rate": 0.0} if name == "PPO" else {"learning_rate": 1e-9}
    model = make(name, env, policy_kwargs={"net_arch": [32]}, **learning_rate)
    expert = Expert()
    callback = bridge.DAggerCallback(expert, every=256, n_epochs=10, learning_rate=1e-2)
    model.learn(1024 + 256, callback)
    assert len(expert.asked) in (4, 5)
    assert all(len(each) >= 200 or name == "PPO" for each in expert.asked)
    observations = np.concatenate(expert.asked)
    expected, _ = Expert().predict(observations, True)
    assert (model.predict(observations, deterministic=True)[0] == expected).mean() > 0.9


class ByRule:
    """An expert that acts as the count says, and remembers about which observations it was asked."""

    def __init__(self):
        self.asked = []

    def predict(self, observation, deterministic):
        self.asked.append(observation)
        return (np.asarray(observation)[:, 0] % 3).astype(np.int64), None

    def get_vec_normalize_env(self):
        return None


@pytest.mark.parametrize("name", ["A2C", "DQN"])
def test_an_expert_is_asked_about_what_the_environment_showed_before_any_normalization(name):
    env = bridge.JaxVecEnv(TimeLimit(Counter(5, "box", "discrete"), 7), 2, 0)
    model, expert = make(name, VecNormalize(env, clip_obs=1.0)), ByRule()
    model.learn(96, bridge.DAggerCallback(expert, every=32, n_epochs=1))
    asked = np.concatenate(expert.asked)
    np.testing.assert_array_equal(asked[:, 0], np.round(asked[:, 0]))
    assert set(asked[:, 0]) == set(range(5))
    assert 32 <= len(asked) <= 96


def test_an_expert_that_takes_masks_says_what_is_legal():
    env = bridge.JaxVecEnv(Locks(), 4, 0)
    expert = make("MaskablePPO", env)
    callback = bridge.DAggerCallback(expert, every=64, n_epochs=1)
    make("MaskablePPO", bridge.JaxVecEnv(Locks(), 4, 1)).learn(192, callback)
    observations, actions = (np.concatenate(each) for each in zip(*callback.parts))
    masks = np.array(MASKS["discrete"])[observations.sum(1).astype(int) % 3]
    assert masks[np.arange(len(actions)), actions].all()
    with pytest.raises(ValueError, match="expert takes masks of legal actions, so the learner must take them too"):
        make("A2C", bridge.JaxVecEnv(Locks(), 4, 1)).learn(64, callback)


def test_dagger_begins_with_a_replay_buffer():
    model = make("DQN").learn(48)
    callback = bridge.DAggerCallback(model, model.replay_buffer, every=10**6)
    make("DQN").learn(4, callback)
    assert len(callback.parts[0][1]) == 48


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"every": 0}, ValueError, "every must be a positive int, got 0"),
        ({"expert": "best.zip"}, TypeError, "expert.predict must be a function, got None"),
        ({"n_epoch": 3}, TypeError, "unexpected keyword argument 'n_epoch'"),
        ({"expert": "RecurrentPPO"}, ValueError, "expert must not be recurrent"),
    ],
    ids=str,
)
def test_what_dagger_cannot_do_is_refused_at_once(given, error, message):
    expert = given.get("expert", ByRule())
    expert = make(expert) if expert == "RecurrentPPO" else expert
    with pytest.raises(error, match=message):
        bridge.DAggerCallback(**given | {"expert": expert})


def test_a_clone_of_an_agent_plays_as_well():
    env = TimeLimit(Counter(9, "box", "discrete"), 7)
    expert = make("PPO", bridge.JaxVecEnv(env, 4, 0)).learn(512)
    episodes = bridge.record_episodes(expert, bridge.JaxVecEnv(env, 4, 1), 40)
    clone = make("DQN", make_env("DQN"))
    bridge.pretrain(clone, episodes, n_epochs=30, learning_rate=1e-2)
    same = clone.predict(episodes["observations"], deterministic=True)[0] == episodes["actions"]
    assert jax.tree.all(same.mean() > 0.95)
