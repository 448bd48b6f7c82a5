"""JaxVecEnv: the contract of a Stable-Baselines3 VecEnv."""

import pickle

import chex
import jax
import numpy as np
import pytest
import torch
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

import jaxenvs
from bridge import JaxVecEnv, make_vec_env
from jaxenvs import CartPole, TimeLimit, environment
from jaxenvs.gym import GymnasiumEnv
from tests.environments import Counter

OBSERVATIONS = ["box", "image", "discrete", "multi_discrete", "multi_binary", "dict", "tuple"]
ACTIONS = ["discrete", "discrete_from_5", "multi_discrete", "multi_binary", "box"]


def counter(num_envs=3, seed=0, **parameters):
    return JaxVecEnv(Counter(**parameters), num_envs, seed)


def started(venv):
    """Reset a VecEnv, and return it."""
    venv.reset()
    return venv


def sample_actions(venv, steps, seed=0):
    venv.action_space.seed(seed)
    return [np.stack([venv.action_space.sample() for _ in range(venv.num_envs)]) for _ in range(steps)]


def plain(observation):
    """DummyVecEnv returns an OrderedDict, which is another pytree."""
    return dict(observation) if isinstance(observation, dict) else observation


def assert_same_step(ours, reference):
    reference = (plain(reference[0]), *reference[1:])
    for mine, theirs in zip(ours[:3], reference[:3], strict=True):
        chex.assert_trees_all_equal_dtypes(mine, theirs)
        chex.assert_trees_all_close(mine, theirs, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(ours[3], reference[3], strict=True):
        mine, theirs = dict(mine), dict(theirs)
        assert ("episode" in mine) == ("episode" in theirs)
        if "episode" in mine:
            episode, expected = mine.pop("episode"), theirs.pop("episode")
            assert episode.keys() == expected.keys()
            assert (episode["r"], episode["l"]) == (pytest.approx(expected["r"]), expected["l"])
        assert mine.keys() == theirs.keys()
        chex.assert_trees_all_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env", "num_steps"),
    [
        (TimeLimit(CartPole(), 12), 40),
        (jaxenvs.make("Pendulum-v1", max_episode_steps=7), 20),
        (TimeLimit(Counter(observation_kind="dict"), 4), 12),
        (TimeLimit(Counter(observation_kind="dict"), 5), 12),  # both flags in the same step
        (Counter(observation_kind="tuple", action_kind="multi_discrete"), 12),
    ],
    ids=["cartpole", "pendulum", "truncated", "truncated and terminated", "terminated"],
)
def test_it_does_what_dummy_vec_env_does_with_monitored_environments(env, num_steps):
    ours = JaxVecEnv(env, 3, seed=5)
    reference = DummyVecEnv([lambda: Monitor(GymnasiumEnv(env)) for _ in range(3)])
    reference.seed(5)
    chex.assert_trees_all_close(ours.reset(), plain(reference.reset()), atol=1e-6)
    ends = 0
    for actions in sample_actions(ours, num_steps):
        step = ours.step(actions)
        assert_same_step(step, reference.step(actions))
        chex.assert_trees_all_close(ours.reset_infos, reference.reset_infos)
        ends += step[2].sum()
    assert ends >= 3
    chex.assert_trees_all_close(ours.reset(), plain(reference.reset()), atol=1e-6)  # the next episode, unseeded


@pytest.mark.thorough
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_every_kind_of_observation_arrives_in_its_space(kind):
    venv = counter(observation_kind=kind)
    for observation in (venv.reset(), venv.step(np.zeros(3, int))[0]):
        for index in range(3):
            assert venv.observation_space.contains(jax.tree.map(lambda leaf, index=index: leaf[index], observation))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ACTIONS)
def test_every_kind_of_action_reaches_the_environment(kind):
    venv = started(counter(action_kind=kind))
    (actions,) = sample_actions(venv, 1)
    _, rewards, _, _ = venv.step(actions)
    np.testing.assert_allclose(rewards, actions.reshape(3, -1).sum(axis=1), rtol=1e-6)
    _, rewards, _, _ = venv.step(actions.tolist())  # plain lists too
    np.testing.assert_allclose(rewards, actions.reshape(3, -1).sum(axis=1), rtol=1e-6)


def test_what_a_step_returned_is_never_written_to_again():
    venv = counter(observation_kind="dict", length=2)
    held, copies = [], []
    venv.reset()
    for _ in range(6):
        step = venv.step(np.ones(3, int))
        held.append(step)
        copies.append(pickle.loads(pickle.dumps(step)))
    for mine, copy in zip(held, copies, strict=True):
        chex.assert_trees_all_equal(mine, copy)


def test_arrays_are_writable_and_each_in_memory_of_its_own():
    venv = counter(length=1)
    first = venv.reset()
    observation, rewards, dones, infos = venv.step(np.ones(3, int))
    assert dones.all()
    terminal = [info["terminal_observation"] for info in infos]
    arrays = [first, observation, rewards, dones, *terminal]
    for i, array in enumerate(arrays):
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in arrays[i + 1 :])
    np.testing.assert_array_equal([array[0] for array in terminal], [1, 1, 1])
    np.testing.assert_array_equal(observation[:, 0], [0, 0, 0])
    assert (rewards.dtype, dones.dtype) == (np.float32, np.bool_)


def test_every_info_is_a_dict_of_its_own():
    venv = started(make_vec_env("CartPole-v1", 4, seed=0))
    infos = [venv.step(np.zeros(4, int))[3] for _ in range(2)][-1]
    infos[0]["mine"] = 1
    assert infos[1] == infos[2] == {"TimeLimit.truncated": False}
    later = [venv.step(np.zeros(4, int))[3] for _ in range(60)]
    assert infos[0] == {"TimeLimit.truncated": False, "mine": 1}
    ends = 0
    for infos in later:
        assert len({id(info) for info in infos}) == 4
        for info in infos:
            assert info.keys() in ({"TimeLimit.truncated"}, {"TimeLimit.truncated", "episode", "terminal_observation"})
            ends += "episode" in info
    assert ends > 4


@pytest.mark.thorough
def test_a_seed_takes_effect_at_the_next_reset_and_only_there():
    venv = make_vec_env("CartPole-v1", 2, seed=3)
    first, second = venv.reset(), venv.reset()
    assert not np.array_equal(first, second)
    assert venv.seed(3) == [3, 4]
    venv.step(np.zeros(2, int))
    np.testing.assert_array_equal(venv.reset(), first)
    np.testing.assert_array_equal(venv.reset(), second)


def test_without_a_seed_numpy_draws_it():
    def first_observation():
        np.random.seed(7)  # noqa: NPY002
        return make_vec_env("CartPole-v1", 2).reset()

    np.testing.assert_array_equal(first_observation(), first_observation())
    assert not np.array_equal(first_observation(), make_vec_env("CartPole-v1", 2).reset())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "actions", "error", "message"),
    [
        ("discrete", [[0], [1], [2]], ValueError, r"shape \(3,\), got \(3, 1\)"),
        ("discrete", [0, 3, 0], ValueError, r"actions\[1\] must lie in Discrete\(3\), got 3"),
        ("discrete_from_5", [5, 4, 5], ValueError, r"actions\[1\] must lie in Discrete\(3, start=5\), got 4"),
        ("multi_discrete", [[0, 0], [2, 3], [3, 3]], ValueError, r"actions\[2\] must lie in MultiDiscrete"),
        ("multi_binary", [[0, 1, 0]] * 2 + [[0, 2, 0]], ValueError, r"actions\[2\] must lie in MultiBinary"),
        ("multi_binary", [[0, 0.5, 0]] * 3, ValueError, r"actions\[0\] must lie in MultiBinary"),
        ("box", [[0, 0], [0, np.nan], [0, 0]], ValueError, r"actions\[1\] must lie in Box.*nan"),
        ("box", [[0, 0], [0, 0], [1.1, 0]], ValueError, r"actions\[2\] must lie in Box"),
    ],
)
def test_a_bad_action_is_named_and_nothing_is_stepped(kind, actions, error, message):
    venv, twin = started(counter(action_kind=kind)), started(counter(action_kind=kind))
    with pytest.raises(error, match=message):
        venv.step(np.array(actions))
    (good,) = sample_actions(venv, 1)
    chex.assert_trees_all_equal(venv.step(good)[:3], twin.step(good)[:3])


def test_a_box_action_may_miss_its_bounds_by_float32_rounding():
    venv = started(counter(action_kind="box"))
    venv.step(np.float32([[1.000001, 2.000001]] * 3))


def test_calls_out_of_order_are_named():
    venv = counter()
    with pytest.raises(RuntimeError, match=r"Call reset\(\) first"):
        venv.step(np.zeros(3, int))
    venv.reset()
    with pytest.raises(RuntimeError, match="step_wait was called without step_async"):
        venv.step_wait()
    venv.set_options(None)


# --- State ----------------------------------------------------------------------------------------------------------


def roll(venv, steps):
    return [venv.step(actions)[:3] for actions in sample_actions(venv, steps)]


@pytest.mark.thorough
def test_state_out_and_in_continues_bit_for_bit(tmp_path):
    venv = started(make_vec_env("CartPole-v1", 5, seed=1))
    roll(venv, 30)
    venv.set_attr("gravity", 12.0)
    venv.set_attr("gravity", 7.0, indices=2)
    np.savez(tmp_path / "state.npz", **venv.get_state())
    expected = roll(venv, 30)

    other = make_vec_env("CartPole-v1", 5, seed=99)
    with np.load(tmp_path / "state.npz") as saved:
        other.set_state(saved)
    assert other.get_attr("gravity") == [12, 12, 7, 12, 12]
    chex.assert_trees_all_equal(roll(other, 30), expected)
    np.testing.assert_array_equal(other.reset(), venv.reset())


def test_the_state_of_another_environment_is_refused_and_nothing_changes():
    venv = started(make_vec_env("CartPole-v1", 2, seed=0))
    before = venv.get_state()
    other = started(make_vec_env("Pendulum-v1", 2, seed=0))
    with pytest.raises(
        ValueError, match=r"from the environment TimeLimit\(env=CartP.*got one from TimeLimit\(env=Pendulum"
    ):
        venv.set_state(other.get_state())
    more = started(make_vec_env("CartPole-v1", 3, seed=0))
    with pytest.raises(
        ValueError, match=r"state\['state.env_states.* must be float32 with shape \(2,\), got float32\[3\]"
    ):
        venv.set_state(more.get_state())
    chex.assert_trees_all_equal(venv.get_state(), before)


def test_environments_of_the_same_kind_share_their_compiled_functions():
    a, b = (make_vec_env("CartPole-v1", 3, seed=s, env_kwargs={"gravity": g}) for s, g in ((0, 9.8), (1, 5.0)))
    assert a.compiled is b.compiled
    assert make_vec_env("CartPole-v1", 4).compiled is not a.compiled


def test_make_vec_env_takes_environments_classes_and_wrappers():
    a = make_vec_env(CartPole(gravity=5.0), 2, env_kwargs={"pole_mass": 0.3})
    b = make_vec_env(CartPole, 2, env_kwargs={"gravity": 5.0, "pole_mass": 0.3})
    assert a.venv == b.venv
    c = make_vec_env(CartPole, 2, wrapper_class=TimeLimit, wrapper_kwargs={"max_steps": 9})
    assert c.get_attr("max_steps") == [9, 9]
    d, e = make_vec_env(CartPole, 2, seed=3, start_index=4), make_vec_env(CartPole, 2, seed=7)
    np.testing.assert_array_equal(d.reset(), e.reset())


@pytest.mark.thorough
def test_a_monitor_folder_gets_the_log_of_episodes(tmp_path, recwarn):
    venv = started(make_vec_env(Counter, 2, monitor_dir=str(tmp_path)))
    for _ in range(5):
        venv.step(np.ones(2, int))
    assert not recwarn.list
    _, names, *rows = (tmp_path / "monitor.csv").read_text().splitlines()
    assert names == "r,l,t"
    assert [row.split(",")[:2] for row in rows] == [["5.0", "5"]] * 2


@pytest.mark.thorough
def test_step_torch_gives_what_step_gives():
    venv, twin = (started(JaxVecEnv(TimeLimit(CartPole(), 9), 6, 0)) for _ in range(2))
    for actions in sample_actions(venv, 25):
        observation, reward, terminated, truncated, final = venv.step_torch(torch.as_tensor(actions))
        expected, rewards, dones, infos = twin.step(actions)
        np.testing.assert_allclose(observation.numpy(), expected, atol=1e-6)
        np.testing.assert_array_equal(reward.numpy(), rewards)
        np.testing.assert_array_equal((terminated | truncated).numpy(), dones)
        for index in np.flatnonzero(dones):
            np.testing.assert_allclose(final[index].numpy(), infos[index]["terminal_observation"], atol=1e-6)
            assert bool(truncated[index] & ~terminated[index]) == infos[index]["TimeLimit.truncated"]
    assert (terminated.dtype, reward.dtype) == (torch.bool, torch.float32)
    with pytest.raises(ValueError, match=r"actions must have shape \(6,\), got \(5,\)"):
        venv.step_torch(torch.zeros(5, dtype=torch.int64))


def test_tensors_of_a_step_keep_their_values_while_later_steps_run():
    venv = started(counter(length=100))
    first = venv.step_torch(torch.zeros(3, dtype=torch.int64))[0]
    for _ in range(20):
        venv.step_torch(torch.zeros(3, dtype=torch.int64))
    assert first[:, 0].tolist() == [1, 1, 1]


def test_a_further_environment_is_not_traced_and_one_over_devices_once():
    traced = []

    @environment
    class Traced(Counter):
        def reset(self, key):
            traced.append(key)
            return super().reset(key)

    JaxVecEnv(Traced(), 3)
    traced.clear()
    JaxVecEnv(Traced(), 3)
    assert len(traced) == 0
    JaxVecEnv(Traced(), 3, devices=1)
    assert len(traced) == 1
