"""Rollouts on tensors: what Stable-Baselines3's own loop and buffers do with NumPy, step by step."""

from typing import Any

import chex
import jax
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, StopTrainingOnMaxEpisodes
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

import jaxenvs
from bridge import JaxVecEnv
from bridge.buffers.tensor_rollout import TensorRolloutBuffer
from bridge.engine.on_policy.tensors import MOST_STEPS_UNSEEN, collect_rollouts
from jaxenvs import TimeLimit, environment
from tests.environments import Counter

# The first versions of SB3 that are supported keep all actions as float32.
SB3_KEEPS_DTYPES = RolloutBuffer(1, spaces.Discrete(2), spaces.Discrete(2)).actions.dtype == np.int64

NUM_ENVS = 3
NUM_STEPS = MOST_STEPS_UNSEEN + 8  # the host looks twice
FIELDS = ["observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns"]


@environment
class DictCounter(Counter):
    @property
    def observation_space(self):
        return spaces.Dict({"vector": spaces.Box(-np.inf, np.inf, (2,)), "number": spaces.Discrete(1000)})

    def _observe(self, state):
        return {"vector": jax.numpy.stack([state.count + 0.0, state.start]), "number": state.count}


class OnTensors:
    """Mixed into an SB3 algorithm: collects on tensors."""

    def collect_rollouts(self, env, callback, rollout_buffer, n_rollout_steps):
        return collect_rollouts(self, env, callback, rollout_buffer, n_rollout_steps)


class TensorPPO(OnTensors, PPO):
    pass


class TensorA2C(OnTensors, A2C):
    pass


class Recorder(BaseCallback):
    """Keeps the locals of every step."""

    NAMES = ("n_steps", "actions", "clipped_actions", "new_obs", "rewards", "dones", "infos")

    def __init__(self):
        super().__init__()
        self.steps: list[dict[str, Any]] = []

    def _on_step(self):
        self.steps.append({name: self.locals[name] for name in self.NAMES if name in self.locals})
        return True


def both(env, algorithms=(PPO, TensorPPO), policy="MlpPolicy", **settings):
    """The same model twice: one that collects as SB3 does, and one that collects on tensors."""
    settings = {"n_steps": NUM_STEPS, "seed": 0, "device": "cpu", **settings}
    if PPO in algorithms:
        settings.setdefault("batch_size", NUM_ENVS * settings["n_steps"])
    reference, ours = algorithms
    yield reference(policy, JaxVecEnv(env, NUM_ENVS), **settings)
    # Made after the first is done with, because the seed is that of PyTorch's and NumPy's global generators.
    yield ours(policy, JaxVecEnv(env, NUM_ENVS), rollout_buffer_class=TensorRolloutBuffer, **settings)


def collect(model, callback=None, go_on=False, loop=None):
    """One rollout, of a new training or of one that goes on; with the model's own loop unless another is given."""
    _, callback = model._setup_learn(10_000, callback, reset_num_timesteps=not go_on)
    callback.on_training_start({"total_timesteps": 10_000}, {})
    loop = loop or type(model).collect_rollouts
    return loop(model, model.env, callback, model.rollout_buffer, model.n_steps)


def to_numpy(tree):
    return jax.tree.map(lambda leaf: leaf.numpy().copy() if isinstance(leaf, torch.Tensor) else leaf.copy(), tree)


def buffer_of(model):
    return {name: to_numpy(getattr(model.rollout_buffer, name)) for name in FIELDS}


def assert_equal_dtypes_and_close(ours, reference, atol=1e-6):
    chex.assert_trees_all_equal_shapes(ours, reference)
    if SB3_KEEPS_DTYPES:
        chex.assert_trees_all_equal_dtypes(ours, reference)
    chex.assert_trees_all_close(ours, reference, rtol=1e-6, atol=atol)


def cartpole(max_episode_steps=12):
    return jaxenvs.make("CartPole-v1", max_episode_steps=max_episode_steps)


def pendulum():
    return jaxenvs.make("Pendulum-v1", max_episode_steps=7)


WIDE = {"log_std_init": 1.0}  # actions that have to be clipped


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (cartpole(), {}),
        (pendulum(), {"policy_kwargs": WIDE}),
        (pendulum(), {"use_sde": True, "sde_sample_freq": 4}),
        (pendulum(), {"use_sde": True, "policy_kwargs": {"squash_output": True}}),
        (TimeLimit(Counter(observation_kind="discrete", action_kind="multi_discrete"), 5), {"stats_window_size": 4}),
        (TimeLimit(Counter(observation_kind="multi_binary", action_kind="multi_binary"), 4), {}),
        (TimeLimit(DictCounter(action_kind="box"), 4), {"policy": "MultiInputPolicy"}),
    ],
    ids=["discrete", "box", "gsde", "squashed", "both flags at once", "multi_binary", "dict"],
)
def test_rollouts_are_those_of_sb3(env, settings):
    seen = []
    for model in both(env, **settings):
        buffers = []
        for go_on in (False, True):
            collect(model, go_on=go_on)
            buffers.append(buffer_of(model))
        # Adding one after the other in float32, as the environments do, is not exact to 1e-6.
        episodes = [(pytest.approx(episode["r"], rel=1e-5), episode["l"]) for episode in model.ep_info_buffer]
        position = (model._last_obs, model._last_episode_starts)
        seen.append((buffers, position, episodes, model.num_timesteps))
    (reference, reference_position, *reference_rest), (ours, position, *rest) = seen
    scale = max(1.0, np.abs(reference[0]["returns"]).max())
    assert_equal_dtypes_and_close(ours, reference, atol=1e-6 * scale)
    assert_equal_dtypes_and_close(position, reference_position)
    assert rest == reference_rest
    assert len(rest[0]) > NUM_ENVS


def test_truncated_and_terminated_episodes_both_occur_in_what_is_compared():
    *_, model = both(cartpole())
    recorder = Recorder()
    collect(model, recorder)
    flags = {info["TimeLimit.truncated"] for step in recorder.steps for info in step["infos"] if "episode" in info}
    assert flags == {True, False}


@pytest.mark.parametrize(
    ("algorithms", "settings"),
    [((PPO, TensorPPO), {"batch_size": 24, "n_epochs": 2}), ((A2C, TensorA2C), {})],
    ids=["ppo", "a2c"],
)
def test_training_gives_the_weights_of_sb3(algorithms, settings):
    weights = []
    for model in both(cartpole(), algorithms, **settings):
        model.learn(2 * NUM_ENVS * NUM_STEPS)
        weights.append({name: tensor.numpy() for name, tensor in model.policy.state_dict().items()})
    chex.assert_trees_all_close(weights[1], weights[0], atol=1e-5)


def test_the_explained_variance_that_sb3_logs_is_the_same():
    logged = []
    for model in both(cartpole(), n_epochs=2):
        collect(model)
        model.train()
        logged.append(model.logger.name_to_value["train/explained_variance"])
    assert logged[1] == pytest.approx(logged[0], abs=1e-5)
    assert isinstance(logged[1], float)


def filled(buffer):
    generator = np.random.default_rng(0)
    size = (buffer.n_envs,)
    for _ in range(buffer.buffer_size):
        observation = {"vector": generator.normal(size=(*size, 2)), "number": generator.integers(9, size=size)}
        is_dict = isinstance(buffer.observation_space, spaces.Dict)
        action, reward, starts = (
            generator.integers(5, size=size),
            generator.normal(size=size),
            generator.random(size) < 0.3,
        )
        value, log_prob = torch.tensor(generator.normal(size=(*size, 1))), torch.tensor(generator.normal(size=size))
        buffer.add(observation if is_dict else observation["vector"], action, reward, starts, value, log_prob)
    buffer.compute_returns_and_advantage(torch.tensor(generator.normal(size=size)), generator.random(size) < 0.3)
    return buffer


@pytest.mark.parametrize("kind", ["box", "dict"])
@pytest.mark.parametrize("batch_size", [7, None])
def test_get_yields_the_minibatches_of_sb3(kind, batch_size):
    model = PPO(
        "MultiInputPolicy" if kind == "dict" else "MlpPolicy",
        JaxVecEnv(DictCounter() if kind == "dict" else Counter(), 4),
        n_steps=5,
        batch_size=20,
        device="cpu",
    )
    reference = filled(model.rollout_buffer)
    ours = filled(TensorRolloutBuffer.like(reference))
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        expected = list(reference.get(batch_size))
        np.random.seed(0)  # noqa: NPY002
        samples = list(ours.get(batch_size))
        assert [type(batch) for batch in samples] == [type(batch) for batch in expected]
        for batch, of_reference in zip(samples, expected, strict=True):
            as_arrays = [to_numpy(part._asdict()) for part in (batch, of_reference)]
            assert_equal_dtypes_and_close(*as_arrays)


def test_get_from_a_buffer_that_is_not_full_is_refused():
    buffer = TensorRolloutBuffer(2, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), "cpu")
    with pytest.raises(RuntimeError, match="got 0 steps of 2"):
        next(buffer.get())


def test_a_reset_keeps_the_memory():
    buffer = filled(TensorRolloutBuffer(2, spaces.Box(-1, 1, (2,)), spaces.Discrete(9), "cpu", n_envs=3))
    memory = [getattr(buffer, name).data_ptr() for name in FIELDS]
    next(buffer.get())
    buffer.reset()
    assert (buffer.pos, buffer.full) == (0, False)
    assert [getattr(buffer, name).data_ptr() for name in FIELDS] == memory


def test_sb3s_own_loop_can_fill_the_buffer_too():
    reference, ours = both(cartpole(), (PPO, PPO))
    for model in (reference, ours):
        torch.manual_seed(0)
        collect(model)
    assert isinstance(ours.rollout_buffer, TensorRolloutBuffer)
    assert type(reference.rollout_buffer) is RolloutBuffer
    assert_equal_dtypes_and_close(buffer_of(ours), buffer_of(reference))


def test_the_two_loops_can_take_turns():
    models = []
    for model in both(cartpole()):
        for number in range(4):
            collect(model, go_on=number > 0, loop=OnPolicyAlgorithm.collect_rollouts if number % 2 else None)
        models.append(model)
    reference, ours = models
    assert_equal_dtypes_and_close(buffer_of(ours), buffer_of(reference))
    assert [episode["l"] for episode in ours.ep_info_buffer] == [episode["l"] for episode in reference.ep_info_buffer]


@pytest.mark.parametrize(
    ("env", "policy"),
    [(cartpole(), "MlpPolicy"), (pendulum(), "MlpPolicy"), (TimeLimit(DictCounter(), 4), "MultiInputPolicy")],
)
def test_callbacks_see_what_sb3_shows_them(env, policy):
    recorders = []
    for model in both(env, policy=policy):
        recorders.append(Recorder())
        collect(model, recorders[-1])
    reference, ours = recorders
    assert len(ours.steps) == len(reference.steps) == NUM_STEPS
    for mine, theirs in zip(ours.steps, reference.steps, strict=True):
        infos, expected_infos = mine.pop("infos"), theirs.pop("infos")
        # SB3 has added to these rewards since, in place, what truncation cut off.
        rewards, expected_rewards = mine.pop("rewards"), theirs.pop("rewards")
        cut = np.array([info["TimeLimit.truncated"] for info in expected_infos])
        np.testing.assert_allclose(rewards[~cut], expected_rewards[~cut], rtol=1e-5)
        assert mine.pop("n_steps") == theirs.pop("n_steps")
        assert_equal_dtypes_and_close(mine, theirs)
        for info, expected in zip(infos, expected_infos, strict=True):
            expected = {name: expected[name] for name in expected if name not in ("count", "nested")}
            assert info.keys() == expected.keys()
            if "episode" in info:
                episode, of_reference = info["episode"], expected["episode"]
                assert (episode["r"], episode["l"]) == (pytest.approx(of_reference["r"], rel=1e-5), of_reference["l"])
                assert episode["t"] > 0
                assert_equal_dtypes_and_close(info["terminal_observation"], expected["terminal_observation"])
            assert info["TimeLimit.truncated"] == expected["TimeLimit.truncated"]


def test_without_callbacks_nothing_is_copied_for_them():
    *_, model = both(cartpole())
    _, callback = model._setup_learn(10_000, progress_bar=True)
    callback.on_training_start({"total_timesteps": 10_000}, {})
    assert model.collect_rollouts(model.env, callback, model.rollout_buffer, NUM_STEPS)
    callback.on_training_end()
    assert callback.n_calls == NUM_STEPS
    assert callback.num_timesteps == NUM_ENVS * NUM_STEPS
    assert "infos" not in callback.locals


def test_a_callback_ends_the_training_where_it_would_with_sb3():
    ended = []
    for model in both(cartpole()):
        stop = StopTrainingOnMaxEpisodes(max_episodes=1)
        model.learn(10_000, callback=stop)
        ended.append((model.num_timesteps, stop.n_episodes))
    assert ended[0] == ended[1]
    assert ended[1][0] < NUM_ENVS * NUM_STEPS


def test_a_function_as_a_callback_sees_the_steps_too():
    *_, model = both(Counter())
    model.learn(10_000, callback=lambda locals_, _: not locals_["dones"].any())
    assert model.num_timesteps == 5 * NUM_ENVS


@pytest.mark.parametrize(
    ("most_steps", "expected"),
    [(3, ["start", "step", "step", "step", "end"]), (2, ["start", "step", "step"])],
    ids=["to the end", "stopped"],
)
def test_callbacks_are_called_in_order_while_the_policy_is_not_training(most_steps, expected):
    class Order(BaseCallback):
        calls = ()

        def _on_rollout_start(self):
            self.calls += ("start",)

        def _on_step(self):
            assert not self.model.policy.training
            self.calls += ("step",)
            return self.n_calls < most_steps or most_steps == 3

        def _on_rollout_end(self):
            self.calls += ("end",)

    *_, model = both(Counter(), n_steps=3)
    model.policy.set_training_mode(True)
    order = Order()
    assert collect(model, order) == (most_steps == 3)
    assert list(order.calls) == expected


def test_after_a_stop_the_algorithm_goes_on_from_what_the_environments_show():
    class StopAtFour(BaseCallback):
        def _on_step(self):
            return self.n_calls < 4

    *_, model = both(Counter(length=100))
    assert not collect(model, StopAtFour())
    np.testing.assert_array_equal(model._last_obs[:, 0], [4, 4, 4])
    np.testing.assert_array_equal(model._last_episode_starts, [False] * NUM_ENVS)


def test_what_is_jaxs_is_never_written_to(monkeypatch):
    *_, model = both(TimeLimit(Counter(action_kind="box"), 4))
    held = []
    step_torch = model.env.step_torch

    def holding(actions):
        tensors = step_torch(actions)
        held.append((tensors, [tensor.clone() for tensor in tensors]))
        return tensors

    monkeypatch.setattr(model.env, "step_torch", holding)
    collect(model)
    model.train()
    assert any(truncated.any() for (_, _, _, truncated, _), _ in held)
    for tensors, copies in held:
        for tensor, copy in zip(tensors, copies, strict=True):
            torch.testing.assert_close(tensor, copy, rtol=0, atol=0)


def test_last_observation_is_not_jaxs_memory():
    *_, model = both(cartpole())
    collect(model)
    assert model._last_obs.flags.owndata
    assert model._last_obs.flags.writeable


def test_a_model_is_saved_and_goes_on(tmp_path):
    *_, model = both(cartpole(), n_steps=8)
    model.learn(48)
    model.save(tmp_path / "model")
    again = TensorPPO.load(tmp_path / "model", env=JaxVecEnv(cartpole(), NUM_ENVS), device="cpu")
    assert isinstance(again.rollout_buffer, TensorRolloutBuffer)
    again.learn(48, reset_num_timesteps=False)
    assert again.num_timesteps == 96


def test_a_custom_policy_learns():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.latent_dim_pi, self.latent_dim_vf = torch.nn.LazyLinear(8), 8, 8
            self.features(torch.zeros(1, 3))

        def forward(self, features):
            return self.forward_actor(features), self.forward_critic(features)

        def forward_actor(self, features):
            return torch.nn.functional.relu(self.features(features), inplace=True)

        forward_critic = forward_actor

    class Policy(PPO.policy_aliases["MlpPolicy"]):
        def _build_mlp_extractor(self):
            self.mlp_extractor = Network()

    *_, model = both(pendulum(), policy=Policy)
    before = model.policy.value_net.weight.clone()
    model.learn(2 * NUM_ENVS * NUM_STEPS)
    assert not torch.equal(model.policy.value_net.weight, before)


def test_collecting_without_a_first_observation_is_refused():
    *_, model = both(cartpole(), n_steps=8)
    with pytest.raises(RuntimeError, match="call learn"):
        model.collect_rollouts(model.env, CallbackList([]), model.rollout_buffer, 8)
