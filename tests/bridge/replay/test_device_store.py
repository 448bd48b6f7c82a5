"""The store of a replay buffer on the device: every kind of observation, every transition, and back without a loss."""

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common import buffers

import bridge
from bridge import JaxVecEnv, ReplayBuffer
from bridge.replay import device_store
from jaxenvs import Environment, TimeStep, environment, static, struct
from tests.bridge.algorithms.cases import OWN, make, make_env
from tests.environments import Counter

HAS_N_STEP = hasattr(buffers, "NStepReplayBuffer")


@struct
class State:
    count: jax.Array


@environment
class Parts(Environment[State]):
    """Never ends. Its observations are dicts whose keys are in no alphabetical order, with a number among the parts."""

    action_kind: str = static(default="DQN")

    @property
    def observation_space(self):
        parts = {"z": spaces.Box(0, 1, (2,)), "number": spaces.Discrete(1000), "a": spaces.Box(-1, 0, (2,))}
        return spaces.Dict(OrderedDict(parts))

    @property
    def action_space(self):
        return spaces.Discrete(3) if self.action_kind == "DQN" else spaces.Box(-1, 1, (2,))

    def reset(self, key):
        state = State(jnp.zeros((), jnp.int32))
        return state, self._timestep(state)

    def step(self, state, action):
        state = State(state.count + 1)
        return state, self._timestep(state)

    def _timestep(self, state):
        part = jnp.full(2, state.count / 1000)
        return TimeStep.create({"z": part, "number": state.count, "a": -part})


def model_of_parts(name="DQN", **settings):
    settings = {"policy": "MultiInputPolicy", "buffer_size": 400, "learning_starts": 30, **settings}
    if "n_steps" in OWN[name]:
        settings["n_steps"] = 1  # SB3 has no others of Dict observations
    return make(name, JaxVecEnv(Parts(name), 2), **settings)


def is_compiled(model):
    return model.plan.wrapped_env is not None


# --- Kinds of observations ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_numbers_of_a_discrete_space_are_stored_as_the_environments_gave_them(name):
    model = make(name, make_env(name, kind="discrete"))
    for _ in range(2):  # the second call continues from the returned store
        model.learn(24, reset_num_timesteps=False)
        assert is_compiled(model)
        buffer = model.replay_buffer
        size = buffer.size()
        assert buffer.observations.dtype == np.int64
        np.testing.assert_array_equal(buffer.observations[:size, 0], np.arange(size)[:, None] % 5)  # of five steps each
        np.testing.assert_array_equal(buffer.next_observations[:size, 0], np.arange(size)[:, None] % 5 + 1)
        np.testing.assert_array_equal(buffer.dones[:size, 0], np.arange(size) % 5 == 4)


# --- The order of keys ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_observations_whose_keys_are_in_any_order_are_stored_by_name_and_cut_no_episode(name):
    model = model_of_parts(name)
    for _ in range(3):
        model.learn(24, reset_num_timesteps=False)
        assert is_compiled(model)
        buffer = model.replay_buffer
        size = buffer.size()
        assert list(buffer.observations) == ["z", "number", "a"]
        assert not buffer.dones.any()
        for column, first in ((buffer.observations, 0), (buffer.next_observations, 1)):
            number = first + np.arange(size)
            np.testing.assert_array_equal(column["number"][:size, 0, 0], number)
            np.testing.assert_allclose(column["z"][:size, 0, 1], number / 1000, rtol=1e-6)
            np.testing.assert_allclose(column["a"][:size, 0, 1], -number / 1000, rtol=1e-6)


@pytest.mark.parametrize("storage", ["ram", "memmap"])
def test_what_is_added_goes_to_its_name_whatever_the_order_of_keys(storage, tmp_path):
    space = spaces.Dict(OrderedDict((name, Parts().observation_space[name]) for name in "za"))
    path = {"path": tmp_path} if storage == "memmap" else {}
    buffer = ReplayBuffer(10, space, spaces.Discrete(2), device="cpu", storage=storage, **path)

    def given(number):
        return {"a": np.full((1, 2), -number), "z": np.full((1, 2), number)}

    rest = (np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), [{}])
    buffer.add(given(0.1), given(0.2), *rest)
    buffer.add(given(0.2), given(0.3), *rest)
    rows = {name: np.stack([part, part + np.sign(part) * 0.1]) for name, part in given(0.3).items()}
    after = {name: part + np.sign(part) * 0.1 for name, part in rows.items()}
    buffer.add_rollout(rows, np.zeros((2, 1, 1)), np.zeros((2, 1)), np.zeros((2, 1)), np.zeros((2, 1)), after)
    assert not buffer.dones.any()
    for column, first in ((buffer.observations, 0.1), (buffer.next_observations, 0.2)):
        expected = first + 0.1 * np.arange(4)
        np.testing.assert_allclose(np.asarray(column["z"])[:4, 0, 0], expected, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(column["a"])[:4, 0, 0], -expected, rtol=1e-6)


def test_a_folder_written_with_keys_in_another_order_is_read_by_name(tmp_path):
    def buffer(names):
        parts = OrderedDict((name, Parts().observation_space[name]) for name in names)
        arguments = (10, spaces.Dict(parts), spaces.Discrete(2))
        return ReplayBuffer(*arguments, device="cpu", storage="memmap", path=tmp_path)

    first = buffer("za")
    before, after = ({"z": np.full((1, 2), x), "a": np.full((1, 2), -x)} for x in (0.1, 0.2))
    first.add(before, after, np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), [{}])
    first.close()
    second = buffer("az")
    np.testing.assert_allclose(second.next_observations["z"][0], after["z"])
    np.testing.assert_allclose(second.next_observations["a"][0], after["a"])


# --- Resets ---------------------------------------------------------------------------------------------------------


def test_a_reset_by_hand_moves_no_row_and_ends_slices():
    """Also where no observation shows it, and on the device as on the host."""
    arguments = (60, spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    buffer, kept = (ReplayBuffer(*arguments, device="cpu", n_envs=2) for _ in range(2))
    zeros, no = np.zeros((2, 2), np.float32), np.zeros(2, bool)
    step = jax.jit(lambda store, reward: store.add(zeros, no.astype(int), reward, no, no, zeros))
    for number in range(50):
        if number % 7 == 0:
            buffer.mark_reset()
            kept.mark_reset()
        store = buffer.to_device(4)
        buffer.keep_on_device(step(store, np.full(2, number, np.float32)), 1)
        assert buffer.is_on_device
        kept.add(zeros, zeros, no.astype(int), np.full(2, number), no, [{}, {}])
        if number in (20, 40):
            assert buffer.rewards[number % 30, 0] == number  # moved to the host
    for each in (buffer, kept):
        assert (each.size(), each.pos, each.full, each.dones.sum()) == (30, 20, True, 0)
        slices = each.sample_slices(200, 7)
        assert set(slices.rewards[:, 0].tolist()) == {21, 28, 35, 42}
        assert slices.truncated[slices.rewards[:, -1] < 48][:, -1].all()
    np.testing.assert_array_equal(buffer.rewards, kept.rewards)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "serial"])
def test_no_slice_crosses_the_reset_that_learn_makes(backend):
    """In an environment whose observation is often the same before and after the reset."""
    env = bridge.make_vec_env("FrozenLake-v1", 2, backend=backend, seed=0)
    settings = {"learning_starts": 1000, "buffer_size": 500, "train_freq": 3, "seed": 0, "device": "cpu"}
    model = bridge.DQN("MlpPolicy", env, **settings)
    for _ in range(20):
        model.learn(6)
    buffer = model.replay_buffer
    at_resets = np.arange(2, 57, 3)
    same = (buffer.next_observations[at_resets] == buffer.observations[at_resets + 1])[..., 0]
    assert (same & (buffer.dones[at_resets] == 0)).any()
    assert buffer.resets[-1] == 57
    slices = buffer.sample_slices(2000, 2)
    assert not np.isin(slices.indices[:, 0] // 2, at_resets).any()


def test_an_empty_part_of_another_dtype_comes_back():
    space = spaces.Dict({"empty": spaces.Box(-1, 1, (0,), np.float64), "numbers": spaces.Box(-1, 1, (2,))})
    rows = buffers.DictReplayBuffer(6, space, spaces.Discrete(2), n_envs=2)
    step = {"empty": np.zeros((2, 0)), "numbers": np.ones((2, 2))}
    rows.add(step, step, np.zeros(2), np.zeros(2), np.zeros(2), [{}, {}])
    back = device_store.to_host(device_store.to_device(rows, 1, None), rows)
    assert back["observations"]["empty"].shape == (3, 2, 0)


# --- What is known without bringing it back --------------------------------------------------------------------------


def test_sizes_are_known_without_bringing_the_store_back(monkeypatch):
    model = make()
    seen = []

    class Looks(stable_baselines3.common.callbacks.BaseCallback):
        def _on_step(self):
            buffer = self.model.replay_buffer
            seen.append((buffer.size(), buffer.pos, buffer.full))
            return True

    monkeypatch.setattr(device_store, "to_host", lambda *_: pytest.fail("The store came back."))
    model.learn(240, Looks())
    # As in SB3, a callback runs before its step is stored.
    assert seen[-1] == (100, 19, True)
    assert seen[8] == (8, 8, False)
    monkeypatch.undo()
    assert model.replay_buffer.observations.shape == (100, 2, 2)
    assert (model.replay_buffer.size(), model.replay_buffer.pos) == (100, 20)


def test_a_buffer_whose_arrays_were_taken_and_not_given_back_says_so_until_it_is_reset():
    buffer, observation = ReplayBuffer(10, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), device="cpu"), np.zeros((1, 2))
    step = observation, observation, np.zeros(1), np.zeros(1), np.zeros(1, bool), [{}]
    buffer.add(*step)
    store = buffer.to_device(4)
    jax.jit(lambda replay: jax.tree.map(lambda leaf: leaf + 1, replay), donate_argnums=0)(store)
    buffer.keep_on_device(store)
    for look in (
        lambda: buffer.sample(2),
        lambda: buffer.add(*step),
        lambda: buffer.dones.sum(),
    ):
        with pytest.raises(
            RuntimeError, match=r"contents of the replay buffer are lost.*load_replay_buffer.*reset\(\)"
        ):
            look()
    with pytest.raises(RuntimeError, match="contents of the replay buffer are lost"):
        buffer.to_device(4)
    buffer.reset()
    assert buffer.size() == 0
    buffer.add(*step)
    assert buffer.size() == 1


@pytest.mark.parametrize("size", [12, 40])
def test_a_program_has_what_was_written_by_hand(size):
    space = spaces.Box(-1000, 1000, (2,), np.float32)
    buffer = ReplayBuffer(size, space, spaces.Discrete(2), device="cpu", **({"n_steps": 3} if HAS_N_STEP else {}))
    for step in range(20):
        observation = np.full((1, 2), step)
        buffer.add(observation, observation + 1, np.zeros(1), np.ones(1), np.array([step % 7 == 6]), [{}])
    buffer.next_observations[9] = 77
    buffer.next_observations[4], buffer.dones[6], buffer.dones[2] = 99, 0, 1
    rows = np.arange(buffer.size()) + (buffer.pos if buffer.full else 0)
    expected = buffer._get_samples(rows % buffer.buffer_size)
    n_steps = buffer.n_steps
    store = buffer.to_device(4)
    drawn = store.transitions(jnp.asarray(rows % store.capacity), jnp.zeros(len(rows), int), 0.99, n_steps)
    np.testing.assert_array_equal(drawn.next_observation, expected.next_observations)
    np.testing.assert_array_equal(drawn.discount == 0, expected.dones[:, 0] == 1)
    np.testing.assert_allclose(drawn.reward, expected.rewards[:, 0], rtol=1e-6)
    before = [np.array(each) for each in (buffer.next_observations, buffer.dones, buffer.timeouts)]
    buffer.keep_on_device(buffer.to_device(4))
    for one, other in zip(before, (buffer.next_observations, buffer.dones, buffer.timeouts)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["obs", "next_obs", "action"])
@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_integers_beyond_those_of_programs_are_no_others_without_an_error(name, value):
    model = bridge.DQN(
        "MlpPolicy",
        JaxVecEnv(Counter(observation_kind="discrete"), 2),
        policy_kwargs={"net_arch": [4]},
        learning_starts=100,
        buffer_size=64,
        seed=0,
    )
    given = {each: np.zeros((2, 1), np.int64) for each in ("obs", "next_obs", "action")}
    given[name][1] = value
    model.replay_buffer.add(**given, reward=np.zeros(2), done=np.ones(2), infos=[{}, {}])
    with pytest.raises(ValueError, match=f"must be between .* got {value}"):
        model.learn(8)
    stored = {"obs": "observations", "next_obs": "next_observations", "action": "actions"}[name]
    assert np.asarray(getattr(model.replay_buffer, stored))[0, 1] == value


def test_steps_that_wait_survive_an_exception_in_the_function_that_writes_them(monkeypatch):
    buffer = ReplayBuffer(8, spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    zeros = np.zeros((1, 2), np.float32)
    buffer.to_device(4)
    step = zeros, np.zeros(1, int), np.ones(1), np.zeros(1, bool), np.zeros(1, bool), zeros
    buffer.add_on_device(4, *step)

    def fails(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("bridge.replay.waiting_steps._write", fails)
        with pytest.raises(MemoryError):
            buffer.rewards[0]
    assert buffer.size() == 1
    assert buffer.rewards[0] == 1


def test_an_interrupted_copy_to_the_host_loses_nothing(monkeypatch):
    buffer = ReplayBuffer(8, spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    zeros = np.zeros((1, 2), np.float32)
    buffer.add(zeros, zeros, np.zeros((1, 1)), np.ones(1), np.zeros(1), [{}])
    buffer.to_device(4)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(device_store, "to_host", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buffer.rewards[0]
    assert buffer.rewards[0] == 1


@pytest.mark.thorough
@pytest.mark.parametrize("is_dict", [False, True])
def test_on_a_cpu_arrays_move_without_a_copy_unless_other_code_keeps_them(is_dict):
    box = spaces.Box(-1, 1, (2,))
    buffer = ReplayBuffer(8, spaces.Dict({"x": box}) if is_dict else box, box, device="cpu")
    zeros, no = np.zeros((1, 2), np.float32), np.zeros(1, bool)

    def of(array):
        return {"x": array} if is_dict else array

    def within(tree):
        return tree["x"] if is_dict else tree

    def add(replay, value):
        return replay.add(of(zeros + value), zeros, no, no, no, of(zeros))

    compiled = jax.jit(add, donate_argnums=0)

    def written(value):
        store = buffer.to_device(4)
        where = within(store.observation).unsafe_buffer_pointer()
        buffer.keep_on_device(compiled(store, value), 1)
        return where

    written(1)
    place = within(buffer.observations).ctypes.data
    assert written(2) == place == within(buffer.observations).ctypes.data
    within(buffer.observations)[0] = 7  # where JAX's array lies
    kept = within(buffer.observations)[:3]
    assert written(3) != place
    np.testing.assert_array_equal(kept[:, 0, 0], [7, 2, 0])
    np.testing.assert_array_equal(within(buffer.observations)[:3, 0, 0], [7, 2, 3])
    buffer.reset()
    np.testing.assert_array_equal(kept[:, 0, 0], [7, 2, 0])
