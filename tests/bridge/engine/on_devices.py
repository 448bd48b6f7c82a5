"""Models whose environments are divided over devices of a CPU, in a separate process: their results, as JSON.

`XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.bridge.engine.on_devices NAME ...`
"""

import contextlib
import copy
import json
import pickle
import sys
import tempfile
from unittest import mock

import jax
import numpy as np
import stable_baselines3
import torch
from jax.sharding import Mesh
from stable_baselines3.common.vec_env import VecNormalize

import bridge
import jaxenvs
from bridge import JaxVecEnv, make_vec_env
from bridge.engine.learner import Learner
from bridge.errors import NotCompilable
from jaxenvs.learn import make_mesh
from tests.bridge.algorithms.cases import OWN, SETTINGS, state_of
from tests.bridge.small_models import Recorder
from tests.masked_environments import Locks

DEVICES, NUM_ENVS, STEPS = 4, 8, 192
CARTPOLE, PENDULUM = jaxenvs.make("CartPole-v1"), jaxenvs.make("Pendulum-v1")
SMALL = {"n_steps": 8, "policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu", "engine": "xla"}
# Plain gradients: Adam hides that one is too large by a factor.
PLAIN = {"learning_rate": 1e-2, "max_grad_norm": 1e9, "use_rms_prop": False}
MINIBATCHES = SMALL | {"batch_size": 16, "n_epochs": 2}
OFF = SETTINGS | {"engine": "xla", "buffer_size": 400}
MODELS = {
    "A2C": ("A2C", CARTPOLE, SMALL | PLAIN | {"normalize_advantage": True}),
    "PPO": ("PPO", PENDULUM, MINIBATCHES | {"target_kl": 0.02, "use_sde": True}),
    "PPO, normalised": ("PPO", PENDULUM, MINIBATCHES),
    "RecurrentPPO": (
        "RecurrentPPO",
        CARTPOLE,
        MINIBATCHES | {"policy_kwargs": {"net_arch": [8], "lstm_hidden_size": 4}},
    ),
    "MaskablePPO": ("MaskablePPO", Locks(), MINIBATCHES),
    "DQN": ("DQN", CARTPOLE, OFF | OWN["DQN"]),
    "SAC": ("SAC", PENDULUM, OFF | OWN["SAC"]),
    "CrossQ": ("CrossQ", PENDULUM, OFF | OWN["CrossQ"]),
}
POLICIES = {"RecurrentPPO": "MlpLstmPolicy"}
# Where functions that divide are called: by `run_on`, and by JaxVecEnv.
DIVIDING = ["jaxenvs.learn.devices", "bridge.vec_env.compiled_functions"]
PLACING = ["bridge.vec_env.compiled_functions", "bridge.replay.device_store"]


def make(name, over):
    algorithm, env, settings = MODELS[name]
    env = JaxVecEnv(env, NUM_ENVS, seed=0, devices=over)
    if "normalised" in name:
        env = VecNormalize(env)
    policy = POLICIES.get(algorithm, "MlpPolicy")
    return getattr(bridge, algorithm)(policy, env, **copy.deepcopy(settings))


def axis_of(spec):
    """Return the axis of environments, or None if all have the same array."""
    return next((axis for axis, name in enumerate(spec) if name is not None), None)


def by_vmap(function, mesh, in_specs, out_specs):
    """Do on one device what `on_each` does, with a device for each element of an axis of `vmap`."""
    number, name = mesh.size, mesh.axis_names[0]

    def run(*arguments):
        leaves, structure = jax.tree.flatten(arguments)
        axes = [axis_of(spec) for spec in jax.tree.leaves(jax.tree.broadcast(in_specs, arguments))]
        parts = [
            leaf if axis is None else leaf.reshape(*leaf.shape[:axis], number, -1, *leaf.shape[axis + 1 :])
            for leaf, axis in zip(map(jax.numpy.asarray, leaves), axes)
        ]
        own = jax.vmap(
            lambda *parts: function(*jax.tree.unflatten(structure, parts)), axes, axis_name=name, axis_size=number
        )
        results, shape = jax.tree.flatten(own(*parts))
        specs = jax.tree.leaves(jax.tree.broadcast(out_specs, jax.tree.unflatten(shape, results)))

        def whole(leaf, axis):
            if axis is None:
                return leaf[0]
            leaf = jax.numpy.moveaxis(leaf, 0, axis)
            return leaf.reshape(*leaf.shape[:axis], -1, *leaf.shape[axis + 2 :])

        return jax.tree.unflatten(shape, [whole(leaf, axis_of(spec)) for leaf, spec in zip(results, specs)])

    return run


def learnt(name, over, callback=None):
    """A model and what it started from."""
    model = make(name, over)
    before = weights(model)
    return model.learn(STEPS, callback=callback), before


def weights(model):
    return {name: tensor.numpy().copy() for name, tensor in model.policy.state_dict().items()}


def difference(one, other):
    assert one.keys() == other.keys()
    return max(float(np.abs(one[key].astype(float) - other[key].astype(float)).max(initial=0)) for key in one)


def on_one(name):
    """Run by `vmap` what four devices would do."""
    mesh = Mesh(make_mesh().devices, ("by vmap",))  # another name, for which nothing is compiled yet
    with contextlib.ExitStack() as patches:
        dividing = [patches.enter_context(mock.patch(f"{module}.on_each", side_effect=by_vmap)) for module in DIVIDING]
        for module in PLACING:
            patches.enter_context(mock.patch(f"{module}.place", lambda tree, *_: jax.tree.map(jax.numpy.array, tree)))
        model = learnt(name, mesh)[0]
        assert dividing[0].called  # that of the environments is cached from the second model on
        return model


def is_alike(leaf):
    return all((np.asarray(part.data) == np.asarray(leaf)).all() for part in leaf.addressable_shards)


def compare(name):
    """A training over four devices, watched step by step; over as many by `vmap`; and over one, and without."""
    write_back, alike = Learner.write_back, []

    def looking(self, params, *rest, **keywords):
        alike.extend(is_alike(leaf) for leaf in jax.tree.leaves(params) if isinstance(leaf, jax.Array))
        write_back(self, params, *rest, **keywords)

    with mock.patch.object(Learner, "write_back", looking):
        model, before = learnt(name, DEVICES)
    state, expected = state_of(model, with_store=False), state_of(on_one(name), with_store=False)
    one, alone = (state_of(learnt(name, over)[0], with_store=False) for over in (1, None))
    return {
        "plan": str(model.plan),
        "moved": difference(before, weights(model)),
        "vmap": difference(state, expected),
        "alike": all(alike),
        "one device": difference(one, alone),
    }


def shown(name):
    """Return what callbacks and logs see on four devices and on one, and what Stable-Baselines3 reads from the zip."""
    recorders = [Recorder(), Recorder()]
    model, alone = (learnt(name, over, recorder)[0] for over, recorder in zip((DEVICES, None), recorders))
    of_stock = getattr(stable_baselines3, MODELS[name][0])
    observation = model._last_obs
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model")
        stock = of_stock.load(f"{folder}/model")
        again = getattr(bridge, MODELS[name][0]).load(f"{folder}/model", env=make(name, DEVICES).get_env())
    same = np.allclose(*(each.predict(observation, deterministic=True)[0] for each in (model, stock)), atol=1e-5)
    again.learn(STEPS, reset_num_timesteps=False)
    return {
        "events": recorders[0].events == recorders[1].events,
        "locals": sorted(recorders[0].steps[0]) == sorted(recorders[1].steps[0]),
        "logs": sorted(model.logger.name_to_value) == sorted(alone.logger.name_to_value),
        "zip": bool(same),
        "goes on": again.num_timesteps,
    }


def stored(name):
    """Return whether each stored transition of an environment continues with its next one."""
    model = learnt(name, DEVICES)[0]
    buffer = model.replay_buffer
    size, going_on = buffer.size(), 1 - np.array(buffer.dones)
    gap = np.abs(buffer.next_observations[: size - 1] - buffer.observations[1:size]).max(-1) * going_on[: size - 1]
    rows = [size, int(buffer.pos), int(buffer.dones.sum())]
    model.learn(STEPS, reset_num_timesteps=False)  # from what was brought back to the host
    return {"gap": float(gap.max()), "rows": rows, "later": buffer.size()}


def whole_batches(name):
    """Updates of the same rollout over devices and without, whose minibatches are all of it: plain gradients."""
    over, alone = (make(name, each) for each in (DEVICES, None))
    whole = {"batch_size": SMALL["n_steps"] * NUM_ENVS} if hasattr(over, "batch_size") else {}
    for model in (over, alone):
        vars(model).update(whole)
    before, (_, callback) = weights(over), over._setup_learn(STEPS)
    alone._setup_learn(STEPS)
    over.collect_rollouts(over.env, callback, over.rollout_buffer, SMALL["n_steps"])
    rollout = {name: array.copy() for name, array in vars(over.rollout_buffer).items() if isinstance(array, np.ndarray)}
    vars(alone.rollout_buffer).update(rollout, pos=SMALL["n_steps"], full=True)
    over.train(), alone.train()
    return {
        "moved": difference(before, weights(over)),
        "difference": difference(weights(over), weights(alone)),
        "logs": max(abs(over.logger.name_to_value[each] - alone.logger.name_to_value[each]) for each in METRICS),
    }


METRICS = ("train/entropy_loss", "train/value_loss", "train/explained_variance")


def environments():
    """Steps over devices, and the same without: the largest difference, and whether infos and ends are the same."""

    def stepped(over):
        arguments = {} if over is None else {"vec_env_kwargs": {"devices": over}}
        env = make_vec_env("CartPole-v1", NUM_ENVS, seed=3, **arguments)
        given, rng = [env.reset()], np.random.default_rng(0)
        told = []

        def step(env):
            observation, reward, done, infos = env.step(rng.integers(0, 2, NUM_ENVS))
            given.extend([observation, reward, done])
            told.append([sorted(each) for each in infos])

        for _ in range(15):
            step(env)
        env.unwrapped.set_state(copy.deepcopy(env.unwrapped.get_state()))
        env.set_attr("gravity", 9.0, indices=[NUM_ENVS - 1])  # each environment has its own parameters
        step(pickle.loads(pickle.dumps(env.unwrapped)))
        for _ in range(15):
            step(env)
        given += [env.reset(), *map(np.asarray, jax.tree.leaves(env.get_attr("state")[5]))]
        return given, told

    alone, told = stepped(None)
    over = {number: stepped(number) for number in (1, DEVICES)}
    pairs = {number: zip(alone, given, strict=True) for number, (given, _) in over.items()}
    return {
        "infos": all(each == told for _, each in over.values()),
        "one device": float(max(np.abs(a.astype(float) - b).max() for a, b in pairs[1])),
        "difference": float(max(np.abs(a.astype(float) - b).max() for a, b in pairs[DEVICES])),
    }


def refusals():
    """Return the error messages for what cannot be divided."""

    def refusal(make):
        try:
            return str(make())
        except (NotCompilable, ValueError, RuntimeError) as error:
            return str(error)

    bits, cartpole = (JaxVecEnv(env, NUM_ENVS, devices=DEVICES) for env in (jaxenvs.make("BitFlipping-v0"), CARTPOLE))
    seeded = {"seed": 0, "device": "cpu"}
    her = {"replay_buffer_class": stable_baselines3.HerReplayBuffer, "learning_starts": 100, **seeded}
    return {
        "num_envs": refusal(lambda: JaxVecEnv(CARTPOLE, 6, devices=DEVICES)),
        "minibatches": refusal(
            lambda: bridge.PPO("MlpPolicy", cartpole, n_steps=8, batch_size=6, engine="xla", **seeded).plan
        ),
        "falls back": refusal(lambda: bridge.PPO("MlpPolicy", cartpole, n_steps=8, batch_size=6, **seeded).plan),
        "hindsight": refusal(lambda: bridge.DQN("MultiInputPolicy", bits, engine="xla", **her).plan),
        "tensors": refusal(lambda: cartpole.step_torch(torch.zeros(NUM_ENVS, dtype=torch.int64))),
    }


if __name__ == "__main__":
    assert jax.device_count() == DEVICES
    kinds = {"shown": shown, "stored": stored, "whole batches": whole_batches}
    results = {}
    for argument in sys.argv[1:]:
        kind, _, name = argument.partition(": ")
        if kind in ("environments", "refusals"):
            results[argument] = {"environments": environments, "refusals": refusals}[kind]()
        else:
            results[argument] = kinds[kind](name) if name else compare(argument)
    print(json.dumps(results))
