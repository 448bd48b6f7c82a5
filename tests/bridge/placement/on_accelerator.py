"""Models where JAX has an accelerator, in a separate process: one of two devices of a CPU plays it. Results, as JSON.

`XLA_FLAGS=--xla_force_host_platform_device_count=2 python -m tests.bridge.placement.on_accelerator`
"""

import contextlib
import hashlib
import io
import json
from unittest import mock

import jax
import numpy as np
import torch

import bridge
import jaxenvs
from bridge import make_vec_env
from bridge.evaluation.compiled_episodes import compiled_function
from bridge.replay.rows import Rows
from jaxenvs.compilation import default_device
from tests.bridge.algorithms.cases import state_of

CPU, ACCELERATOR = range(2)
SETTINGS = {"policy_kwargs": {"net_arch": [8]}, "seed": 0}
ON_POLICY = {"n_steps": 8, "batch_size": 16, "n_epochs": 1}
OFF_POLICY = {"learning_starts": 4, "buffer_size": 50, "batch_size": 4}
# The settings of each algorithm, and by the backend of its environments, the devices: one of them runs it on the CPU.
MODELS = {"PPO": ON_POLICY, "DQN": OFF_POLICY}
DEVICES = {("PPO", "jax"): ("auto", "cpu"), ("DQN", "jax"): ("auto", "cuda")}
DEVICES |= {(name, "serial"): ("cpu", "cuda") for name in MODELS}


def ids(tree):
    """The numbers of the devices where arrays are."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return sorted({device.id for array in arrays for device in array.devices()})


@contextlib.contextmanager
def recorded_calls():
    """Where the results of compiled functions are, by the name of the function."""
    found, original = {}, default_device._Bound.__call__

    def call(function, *arguments):
        results = original(function, *arguments)
        where = found.setdefault(function._function.__name__, [])
        where += [each for each in ids(results) if each not in where]
        return results

    with mock.patch.object(default_device._Bound, "__call__", call):
        yield found


def digest(state):
    return hashlib.sha256(b"".join(np.ascontiguousarray(state[name]).tobytes() for name in sorted(state))).hexdigest()


def trained(name, backend, device):
    """What a model has where, after it has learned, predicted, been evaluated, saved, loaded, and learned again."""
    env = make_vec_env("CartPole-v1", 2, seed=0, backend=backend)
    model = getattr(bridge, name)("MlpPolicy", env, device=device, **SETTINGS, **MODELS[name])
    with recorded_calls() as calls:
        model.learn(32)
        told = {"plan": str(model.plan), "bits": digest(state_of(model, with_store=False))}
        model.predict(torch.zeros(4), deterministic=True)
        told |= evaluated(model)
        stored = model.replay_buffer._store if isinstance(getattr(model, "replay_buffer", None), Rows) else None
        told |= {"env": ids(getattr(env, "_state", None)), "replay": ids(stored)}
        file = io.BytesIO()
        model.save(file)
        file.seek(0)
        loaded = type(model).load(file, env=env, device=device).learn(16)
        told["loaded"] = str(loaded.plan) == told["plan"]
    return told | {"calls": calls}


def evaluated(model):
    found = []

    def recorded():
        def run(*arguments):
            results = compiled_function()(*arguments)
            found.append(ids(results))
            return results

        return run

    with mock.patch("bridge.evaluation.evaluating.compiled_function", recorded):
        returns = bridge.evaluate(model, jaxenvs.make("CartPole-v1"), 2, max_steps=10).returns
    return {"returns": returns.tolist(), "episodes": found[0]}


def stepped(num_envs, device):
    """Where a JaxVecEnv has its state, whoever has it stepped before."""
    env = make_vec_env("CartPole-v1", num_envs, seed=0, device=device)
    env.reset()
    results = env.step(np.zeros(num_envs, int))
    before = ids(env._state)
    env.write_back(jax.device_put(env.packed_state, jax.devices()[1 - before[0]]))  # as a model elsewhere does
    env.step(np.zeros(num_envs, int))
    return {"state": [before, ids(env._state)], "bits": digest({"observation": results[0]})}


def main():
    jax.config.update("jax_default_device", jax.devices()[ACCELERATOR])
    default_device.is_accelerator = lambda device: device.id == ACCELERATOR
    told = {
        f"{name}, {backend}, {device}": trained(name, backend, device)
        for (name, backend), devices in DEVICES.items()
        for device in devices
    }
    told |= {f"env, {device}": stepped(3, device) for device in ("auto", "cpu", "cuda")}
    told["env, many"] = stepped(4096, "auto")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
