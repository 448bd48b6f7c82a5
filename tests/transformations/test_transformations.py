"""Every environment, and every algorithm of `learn`, under each setting and transformation of JAX."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxenvs
from jaxenvs import learn
from tests.transformations import cases

ROOT = Path(__file__).parent.parent.parent
OF_EACH_KIND = ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "MinAtar/Breakout-v1")
WITH_PHYSICS = (*OF_EACH_KIND, "LunarLander-v3")
# Those that differ from another id only in a limit, a map or the set of actions.
VARIANTS = {"CartPole-v0", "FrozenLake8x8-v1", "LunarLanderContinuous-v3", "BipedalWalker-v3"}
VARIANTS |= {id for id in cases.IDS if id.startswith("MinAtar/") and id.endswith("-v0")}
DISTINCT = [id for id in cases.IDS if id not in VARIANTS]
TRAININGS = tuple(cases.trainings())
# Every setting with one of each kind, and every environment, and every training, with one setting.
TRACED = sorted(
    {*itertools.product(WITH_PHYSICS, cases.TRACED), *((id, "strict promotion in x64") for id in cases.IDS)}
)
IN_BRIEF = ("PPO", "RecurrentPPO", "SAC", "DQN, hindsight")
TRACED_TRAININGS = sorted(
    {*itertools.product(IN_BRIEF, cases.TRACED), *((name, "strict promotion in x64") for name in TRAININGS)}
)
RUN = sorted({*itertools.product(OF_EACH_KIND, cases.RUN), *((id, "checkify") for id in DISTINCT)})
# Without `jit`, a training takes half a minute.
SLOW = {(name, "disable_jit") for name in ("RecurrentPPO", "DQN, hindsight")}
RUN_TRAININGS = sorted({*itertools.product(IN_BRIEF, cases.RUN), *((name, "checkify") for name in TRAININGS)} - SLOW)


@pytest.mark.thorough(but=["Pendulum-v1-shard_map"])
@pytest.mark.parametrize(("id", "setting"), TRACED)
def test_environment_can_be_traced(id, setting):
    cases.TRACED[setting](cases.episode(id))


@pytest.mark.parametrize("setting", cases.TRACED)
def test_an_evaluation_can_be_traced(setting):
    cases.TRACED[setting](cases.evaluation())


@pytest.mark.thorough
@pytest.mark.parametrize("setting", ["checkify", "debug_nans", "remat", "transfer_guard", "x64"])
def test_an_evaluation_runs(setting):
    result = cases.RUN[setting](cases.evaluation())
    assert cases.is_finite(result)
    assert (result[0].lengths == 2).all()


@pytest.mark.thorough(but=OF_EACH_KIND)
@pytest.mark.parametrize("id", cases.IDS)
def test_step_of_a_batch_that_is_divided_over_an_explicit_axis(id):
    venv = cases.vector_env(id)
    state, timestep = jax.eval_shape(venv.reset, cases.key())
    given = (cases.divided(state), cases.divided(jax.eval_shape(lambda: cases.actions(id))))
    next_state, stepped = jax.jit(venv.step).trace(*given).out_info
    assert jax.tree.map(np.shape, (next_state, stepped)) == jax.tree.map(np.shape, (state, timestep))
    specs = {leaf.sharding.spec[0] for leaf in jax.tree.leaves((next_state, stepped))}
    assert specs == {"devices"}


@pytest.mark.thorough(
    but=["RecurrentPPO-strict promotion", "DQN, hindsight-strict promotion in x64", "SAC-strict promotion in x64"]
)
@pytest.mark.parametrize(("name", "setting"), TRACED_TRAININGS)
def test_training_can_be_traced(name, setting):
    cases.TRACED[setting](cases.metrics_of(name))


@pytest.mark.thorough
@pytest.mark.parametrize(("id", "setting"), RUN)
def test_environment_runs(id, setting):
    expected = cases.jit(cases.episode(id))(cases.key())
    result = cases.RUN[setting](cases.episode(id))
    assert cases.is_finite(result)
    if setting != "x64":
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, 1e-4, 1e-4), result, expected)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "setting"), RUN_TRAININGS)
def test_training_runs(name, setting):
    jax.block_until_ready(cases.RUN[setting](cases.metrics_of(name)))


@pytest.mark.thorough
@pytest.mark.parametrize("id", DISTINCT)
def test_a_state_can_be_donated(id):
    venv = cases.vector_env(id)
    state, _ = cases.jit(venv.reset)(cases.key())
    step = cases.jit(venv.step, donate_argnums=0)
    for _ in range(cases.NUM_STEPS):
        state, timestep = step(state, cases.actions(id))
    assert cases.is_finite(timestep.observation)


@pytest.mark.thorough
@pytest.mark.slow
def test_devices_compute_what_one_device_computes():
    """In a process that has several, with meshes of both kinds and `shard_map`."""
    flags = f"--xla_force_host_platform_device_count={cases.NUM_DEVICES} --xla_backend_optimization_level=0"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PJRT_NPROC": "8"}
    command = [sys.executable, "-m", "tests.transformations.on_devices"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["step", "explicit", "auto", "shard_map", "orthogonal", "training"]


@pytest.mark.parametrize(
    "network",
    [
        learn.ActorCritic.of(jaxenvs.make("CartPole-v1")),
        learn.ActorCritic.of(jaxenvs.make("CartPole-v1"), activation=jax.nn.gelu),
        learn.RecurrentActorCritic.of(jaxenvs.make("CartPole-v1")),
        learn.DQNPolicy.of(jaxenvs.make("CartPole-v1")),
        learn.SACPolicy.of(jaxenvs.make("Pendulum-v1")),
    ],
    ids=lambda network: type(network).__name__,
)
def test_a_network_can_be_pickled(network):
    loaded = pickle.loads(pickle.dumps(network))
    assert loaded == network
    assert hash(loaded) == hash(network)


def test_a_pickled_network_whose_activation_is_gone_is_refused():
    data = pickle.dumps(learn.ActorCritic.of(jaxenvs.make("CartPole-v1"), activation=jax.nn.gelu))
    with pytest.raises(AttributeError, match="gelt"):
        pickle.loads(data.replace(b"gelu", b"gelt"))
