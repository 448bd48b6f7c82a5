"""EnvPool beside the environments whose ids it has: Gymnasium's robots and lander; Atari is test_envpool_atari."""

import functools

import gymnasium
import numpy as np
import pytest
import stable_baselines3
from gymnasium.wrappers.vector import TransformReward

from bridge import PPO, SAC, GymVecEnv, make_vec_env
from tests.bridge.vec_env.test_jax_vec_env import sample_actions

envpool = pytest.importorskip("envpool")

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")  # EnvPool's own spaces

# With how many coordinates of the place observations leave out, of which neither what is seen nor rewards depend.
ROBOTS = {"HalfCheetah-v5": 1, "Hopper-v5": 1, "Ant-v5": 2, "Humanoid-v5": 2}
BOX2D = ("LunarLander-v3", "BipedalWalker-v3")


def reference(env_id):
    try:
        return gymnasium.make(env_id)
    except gymnasium.error.DependencyNotInstalled as error:
        pytest.skip(str(error))


@functools.cache
def native(env_id, num_envs=2, **options):
    return make_vec_env(env_id, num_envs, seed=0, env_kwargs=options, backend="native")


@pytest.mark.parametrize("env_id", [*ROBOTS, *BOX2D])
def test_spaces_and_limits_are_gymnasiums(env_id):
    ours, theirs = native(env_id), reference(env_id)
    assert ours.action_space == theirs.action_space
    assert ours.vector_env.config["max_episode_steps"] == theirs.spec.max_episode_steps
    assert ours.observation_space == theirs.observation_space
    observation = ours.reset()
    assert observation.dtype == theirs.observation_space.dtype
    assert observation.shape == (2, *theirs.observation_space.shape)


@pytest.mark.parametrize("env_id", ROBOTS)
def test_two_steps_from_what_is_seen_are_mujocos(env_id):
    """The first brings the reference into the state; positions of bodies, of which rewards are made, lag behind one."""
    venv, env, hidden = native(env_id, max_episode_steps=9), reference(env_id), ROBOTS[env_id]
    robot = env.unwrapped
    num_positions, num_velocities = robot.model.nq - hidden, robot.model.nv
    seen, actions = venv.reset(), sample_actions(venv, 18)
    last = loose = ends = 0
    for at, action in enumerate(actions):
        before, (seen, rewards, dones, infos) = seen, venv.step(action)
        after = infos[0]["terminal_observation"] if dones[0] else seen[0]
        if last:
            expected, reward, terminated, *_ = env.step(action[0])
            loose += np.mean(~np.isclose(after, expected, rtol=1e-6, atol=1e-6))
            np.testing.assert_allclose(after, expected, rtol=0.02, atol=0.02)
            assert rewards[0] == pytest.approx(reward, rel=1e-3, abs=1e-3)
            assert dones[0] == (terminated or (at + 1) % 9 == 0)
            if dones[0]:
                ends += 1
                assert infos[0]["TimeLimit.truncated"] == (not terminated)
                assert np.abs(seen[0] - after).max() > 1e-3  # the next has begun
        if dones[0]:
            last = 0
            continue
        env.reset()
        place = np.zeros(hidden)
        robot.set_state(
            np.concatenate([place, before[0][:num_positions]]),
            before[0][num_positions : num_positions + num_velocities],
        )
        env.step(action[0])
        last = 1
    assert ends >= 1
    assert loose / len(actions) < 0.05  # what the solver of contacts leaves, which begins where it was before


@pytest.mark.parametrize("env_id", BOX2D)
def test_episodes_of_random_actions_are_as_long_and_earn_as_much(env_id):
    env, venv = reference(env_id), native(env_id, 8, max_episode_steps=200)
    env = gymnasium.wrappers.TimeLimit(env.unwrapped, 200)
    ours, theirs = ([], []), ([], [])
    venv.reset()
    while len(ours[0]) < 60:
        for info in venv.step(np.array([env.action_space.sample() for _ in range(8)]))[3]:
            if "episode" in info:
                ours[0].append(info["episode"]["r"])
                ours[1].append(info["episode"]["l"])
    env.action_space.seed(0)
    for seed in range(40):
        env.reset(seed=seed)
        gained = length = done = 0
        while not done:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            gained, length, done = gained + reward, length + 1, terminated or truncated
        theirs[0].append(gained)
        theirs[1].append(length)
    for mine, other in zip(ours, theirs):
        error = np.hypot(np.std(mine) / np.sqrt(len(mine)), np.std(other) / np.sqrt(len(other)))
        assert abs(np.mean(mine) - np.mean(other)) < 4.5 * error + 1e-6


# --- The seam ---------------------------------------------------------------------------------------------------------


def test_calls_in_cpp_give_what_envpools_own_step_gives():
    pool, venv = (
        envpool.make("Hopper-v5", env_type="gymnasium", num_envs=3, seed=7, max_episode_steps=20) for _ in "ab"
    )
    venv = GymVecEnv(venv)
    expected, _ = pool.reset()
    np.testing.assert_array_equal(venv.reset(), expected)
    for action in sample_actions(venv, 30):
        mine = venv.step(action)
        theirs = pool.step(action.astype(np.float64))
        if mine[2].any():
            index = mine[2].argmax()
            np.testing.assert_array_equal(mine[3][index]["terminal_observation"], theirs[0][index])
            break
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1], theirs[1])
        told = {name: value[1] for name, value in theirs[4].items() if name != "players"}
        assert {name: mine[3][1][name] for name in told} == told


def test_in_a_wrapper_it_is_stepped_by_gymnasiums_interface():
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2, seed=0, max_episode_steps=4)
    venv = GymVecEnv(TransformReward(pool, lambda reward: 2 * reward))
    venv.reset()
    steps = [venv.step(np.array([at % 2, 1])) for at in range(8)]
    assert {step[1].tolist()[0] for step in steps} == {2.0}
    assert sum(step[2].sum() for step in steps) == 4


def test_a_seed_begins_the_same_episodes_again():
    venv = native("Hopper-v5")
    firsts = []
    for seed in (3, 3, 4):
        venv.seed(seed)
        firsts.append(venv.reset())
    np.testing.assert_array_equal(firsts[0], firsts[1])
    assert not np.array_equal(firsts[0], firsts[2])
    assert not np.array_equal(venv.reset(), firsts[2])  # the next episodes
    again = make_vec_env("Hopper-v5", 2, seed=4, backend="native")
    np.testing.assert_array_equal(again.reset(), firsts[2])
    np.testing.assert_array_equal(firsts[1][1], firsts[2][0])  # environment i has the seed plus i


@pytest.mark.parametrize("algorithm", ["PPO", "SAC"])
def test_a_model_trains_on_what_sb3_makes_of_64_bits_and_goes_on_beside_gymnasium(algorithm, tmp_path):
    settings = {"n_steps": 8, "batch_size": 16, "n_epochs": 1} if algorithm == "PPO" else {"learning_starts": 10}
    models = [
        package("MlpPolicy", native("Hopper-v5"), seed=0, policy_kwargs={"net_arch": [8]}, **settings)
        for package in ({"PPO": PPO, "SAC": SAC}[algorithm], getattr(stable_baselines3, algorithm))
    ]
    for model in models:
        model.learn(32)
    buffers = [getattr(model, "replay_buffer", None) or model.rollout_buffer for model in models]
    assert buffers[0].observations.dtype == buffers[1].observations.dtype
    models[0].save(tmp_path / "model")
    reference("Hopper-v5")
    env = stable_baselines3.common.env_util.make_vec_env("Hopper-v5", 2)
    getattr(stable_baselines3, algorithm).load(tmp_path / "model", env=env).learn(16)
