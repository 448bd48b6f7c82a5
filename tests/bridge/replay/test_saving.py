"""A saved replay buffer is read where Stable-Baselines3 is alone, and comes back to bridge as it was."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest
import stable_baselines3
from stable_baselines3.common import buffers
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

import bridge
from bridge.replay import PrioritizedReplayBuffer, ReplayBuffer
from bridge.replay.rows import as_sb3s
from tests.bridge.replay import test_hindsight
from tests.bridge.replay.histories import ACTION, OBSERVATIONS, History

KINDS = ["vector", "dict", "discrete", "her", "her_with_infos"]
KINDS += ["n_step"] if hasattr(buffers, "NStepReplayBuffer") else []

READ = """
import sys
for name in ("bridge", "jaxenvs", "jax", "jaxlib"):
    sys.modules[name] = None
import numpy as np
from stable_baselines3.common.save_util import load_from_pkl

class Rewards:
    def env_method(self, name, achieved, desired, infos, indices):
        more = np.array([info.get("number", 0) for info in infos])
        return [more - (np.abs(achieved - desired).sum(-1) > 1).astype(np.float64)]

for file in sys.argv[1:]:
    buffer = load_from_pkl(file)
    assert type(buffer).__module__.startswith("stable_baselines3"), type(buffer)
    if hasattr(buffer, "set_env"):
        buffer.set_env(Rewards())
    np.random.seed(0)
    drawn = buffer.sample(40)
    found = {"pos": buffer.pos, "full": buffer.full, "dones": buffer.dones, "timeouts": buffer.timeouts}
    for name, tensor in drawn._asdict().items():
        parts = tensor if isinstance(tensor, dict) else {"": tensor}
        found |= {f"drawn_{name}_{part}": each.numpy() for part, each in parts.items() if each is not None}
    np.savez(file + ".npz", **found)
    assert buffer.next_observations is not None
"""


def filled(kind, steps):
    if kind.startswith("her"):
        buffer = test_hindsight.make(n_envs=2, copy_info_dict=kind != "her")
        steps = list(test_hindsight.history(2, steps))
    else:
        space = OBSERVATIONS["vector" if kind == "n_step" else kind]
        settings = {"n_steps": 3, "gamma": 0.9} if kind == "n_step" else {}
        buffer, history = ReplayBuffer(40, space, ACTION, n_envs=2, device="cpu", **settings), History(2, space, 0)
        steps = [history.next() for _ in range(steps)]
    for step in steps:
        buffer.add(*step)
    return buffer


def sample(buffer):
    np.random.seed(0)  # noqa: NPY002
    found = {}
    for name, tensor in buffer.sample(40)._asdict().items():
        parts = tensor if isinstance(tensor, dict) else {"": tensor}
        found |= {f"drawn_{name}_{part}": each.numpy() for part, each in parts.items() if each is not None}
    return found


@pytest.mark.thorough
def test_sb3_reads_it_without_bridge_and_jax(tmp_path):
    made = {f"{kind}_{steps}": filled(kind, steps) for kind in KINDS for steps in (13, 20, 47)}
    for name, buffer in made.items():
        save_to_pkl(tmp_path / name, as_sb3s(buffer))
    files = [str(tmp_path / f"{name}.pkl") for name in made]
    command = [sys.executable, "-c", READ, *files]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for file, buffer in zip(files, made.values()):
        with np.load(file + ".npz") as found:
            expected = sample(buffer) | {name: getattr(buffer, name) for name in ("pos", "full", "dones", "timeouts")}
            assert {*found} >= {*expected}
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array, f"{file} {name}")


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_with_the_same_arrays_and_resets(kind):
    buffer, file = filled(kind, 47), io.BytesIO()
    buffer.mine = "attribute"
    buffer.mark_reset()
    save_to_pkl(file, as_sb3s(buffer))
    file.seek(0)
    theirs = load_from_pkl(file)
    again = type(buffer).taking(theirs)
    assert type(again) is type(buffer)
    assert {*vars(again)} == {*vars(buffer)}
    assert (again.mine, again.resets, again.num_added()) == ("attribute", (47,), 47)
    assert again.observations is theirs.observations
    again.env = getattr(buffer, "env", None)
    for name, expected in sample(buffer).items():
        np.testing.assert_array_equal(sample(again)[name], expected, name)


@pytest.mark.thorough
def test_one_that_sb3_has_gone_on_with_is_read_as_sb3s(tmp_path):
    env = bridge.make_vec_env("CartPole-v1", 2, seed=0)
    settings = {"seed": 0, "buffer_size": 60, "learning_starts": 1000, "device": "cpu"}
    model = bridge.DQN("MlpPolicy", env, **settings).learn(40)
    model.save_replay_buffer(tmp_path / "ours")
    stock = stable_baselines3.DQN("MlpPolicy", env, **settings)
    stock.load_replay_buffer(tmp_path / "ours")
    assert type(stock.replay_buffer) is buffers.ReplayBuffer
    stock.learn(60)
    stock.save_replay_buffer(tmp_path / "theirs")
    with (tmp_path / "theirs.pkl").open("rb") as file:
        model.load_replay_buffer(file)
    assert type(model.replay_buffer) is ReplayBuffer
    for name in ("observations", "next_observations", "actions", "rewards", "dones"):
        np.testing.assert_array_equal(getattr(model.replay_buffer, name), getattr(stock.replay_buffer, name))
    model.load_replay_buffer(tmp_path / "ours")
    model.learn(10, reset_num_timesteps=False)


def test_what_sb3_has_no_class_for_is_saved_as_it_is():
    class Own(ReplayBuffer):
        pass

    space = OBSERVATIONS["vector"]
    for buffer in (PrioritizedReplayBuffer(40, space, ACTION), Own(40, space, ACTION)):
        assert as_sb3s(buffer) is buffer
    if "n_step" in KINDS:
        buffer = ReplayBuffer(40, OBSERVATIONS["dict"], ACTION, n_steps=3)
        assert as_sb3s(buffer) is buffer
