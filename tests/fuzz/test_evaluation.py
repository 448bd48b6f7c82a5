"""evaluate and checkpoints refuse what they cannot take, and say why."""

import numpy as np
import stable_baselines3

import bridge
from tests.fuzz.harness import cases, require_clear
from tests.fuzz.values import NAN, NOT_A_BOOL, NOT_A_COUNT, NOT_AN_INT, NOT_POSITIVE, Anything

NOT_A_MODEL = (None, 0, NAN, "ppo", [], {}, np.zeros(2), print, bridge.PPO, Anything())


def model():
    env = bridge.make_vec_env("CartPole-v1", 2, seed=0)
    return bridge.PPO("MlpPolicy", env, n_steps=8, batch_size=16, policy_kwargs={"net_arch": [4]}, device="cpu")


def test_evaluations():
    dqn = stable_baselines3.DQN("MlpPolicy", "CartPole-v1", buffer_size=1)
    bad = {
        "model": NOT_A_MODEL,
        "env": (None, 0, NAN, [], {}, np.zeros(2), print, dqn, Anything()),
        "n_episodes": NOT_A_COUNT,
        "deterministic": NOT_A_BOOL,
        "seed": NOT_AN_INT,
        "max_steps": NOT_POSITIVE[1:],  # None is no limit
        "max_envs": NOT_A_COUNT,
    }
    require_clear(cases(bridge.evaluate, {"model": model(), "env": "CartPole-v1", "n_episodes": 1}, bad), at_least=90)


def test_checkpoints(tmp_path):
    not_a_path = (None, 0, NAN, [], {}, Anything())
    env = bridge.make_vec_env("CartPole-v1", 2)
    trained = model()
    trained._last_obs = trained.env.reset()  # as `learn` begins
    bridge.save_checkpoint(trained, tmp_path / "checkpoint")
    good = {"algorithm": bridge.PPO, "path": tmp_path / "checkpoint", "env": env}
    all_cases = [
        *cases(
            bridge.save_checkpoint,
            {"model": trained, "path": tmp_path / "file"},
            {"model": (*NOT_A_MODEL, model()), "path": not_a_path},
        ),
        *cases(
            bridge.load_checkpoint,
            good,
            {"algorithm": NOT_A_MODEL[:-2], "path": not_a_path, "env": (*not_a_path, "CartPole-v1")},
        ),
        *cases(bridge.RolloutCheckpoint, {"path": "file"}, {"path": not_a_path, "every": NOT_A_COUNT}),
        *cases(bridge.PPO, {"policy": "MlpPolicy", "env": env}, {"engine": ("", "cuda", "XLA", "auto ", b"auto")}),
    ]
    require_clear(all_cases, at_least=60)
