"""Ids of other libraries, and episodes played by the library and by us from the same keys."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs

# Of every id that a library lists, those that cannot be tried, and why.
SKIPPED = {
    "brax/swimmer": "brax 0.14.2 calls jnp.clip with an argument that JAX 0.10 does not have",
    "craftax/Craftax-Pixels-v1": "compiles for more than ten minutes on two shared cores",
    "craftax/Craftax-Symbolic-v1": "compiles for more than ten minutes on two shared cores",
    "gymnax/MNISTBandit-bsuite": "downloads MNIST",
    "jumanji/Connector-v3": "several agents with a reward each",
    "jumanji/LevelBasedForaging-v0": "several agents with a reward each",
    "jumanji/SearchAndRescue-v0": "several agents with a reward each",
    "jumanji/Sokoban-v0": "downloads levels",
    "playground/ReacherEasy": "playground 0.2.0 calls MjSpec.find_body, which MuJoCo no longer has",
    "playground/ReacherHard": "playground 0.2.0 calls MjSpec.find_body, which MuJoCo no longer has",
}
_SEVERAL_PLAYERS = """animal_shogi backgammon chess connect_four gardner_chess go_19x19 go_9x9 hex kuhn_poker
leduc_holdem othello shogi sparrow_mahjong tic_tac_toe"""
_CLONED = """AeroCubeRotateZAxis AlohaHandOver AlohaSinglePegInsertion ApolloJoystickFlatTerrain BarkourJoystick
BerkeleyHumanoidJoystickFlatTerrain BerkeleyHumanoidJoystickRoughTerrain G1JoystickFlatTerrain G1JoystickRoughTerrain
Go1Footstand Go1Getup Go1Handstand Go1JoystickFlatTerrain Go1JoystickRoughTerrain H1InplaceGaitTracking
H1JoystickGaitTracking LeapCubeReorient LeapCubeRotateZAxis Op3Joystick PandaOpenCabinet PandaPickCube
PandaPickCubeCartesian PandaPickCubeOrientation PandaRobotiqPushCube SpotFlatTerrainJoystick SpotGetup
SpotJoystickGaitTracking T1JoystickFlatTerrain T1JoystickRoughTerrain"""
SKIPPED |= {f"pgx/{name}": "several players: tests/third_party/multi_agent" for name in _SEVERAL_PLAYERS.split()}
SKIPPED |= {f"playground/{name}": "clones the robot's model with git" for name in _CLONED.split()}


def all_ids(library, *cheap):
    """Every id as a parameter of a test. All but the cheap ones, by name, are left out unless asked for."""
    return [pytest.param(id, marks=[*_marks(id, cheap)]) for id in jaxenvs.third_party.ids(library)]


def _marks(id, cheap):
    if id in SKIPPED:
        yield pytest.mark.skip(SKIPPED[id])
    if id.partition("/")[2] not in cheap:
        yield pytest.mark.third_party


class Shown(NamedTuple):
    """What a library shows of a step."""

    observation: Any
    reward: Any
    terminated: Any
    truncated: Any


def assert_same_episodes(env, reset, step, num_steps=100, num_envs=4, seed=0, rtol=0.0):
    """Ours and the library's own reset and step show the same, step by step, up to the end of each episode.

    Args:
      reset: key -> (state, observation), the library's.
      step: (state, action, key, number of the step) -> (state, Shown). The key is the one that reset was given.
      rtol: 0 for equal bits.

    Returns:
      What was shown, with the axes (steps, environments).
    """
    env = env.unwrapped
    keys = jax.random.split(jax.random.key(seed), num_envs)
    space = env.action_space
    space.seed(seed)
    state, timestep = jax.jit(jax.vmap(env.reset))(keys)
    library_state, observation = jax.jit(jax.vmap(reset))(keys)
    running = np.ones(num_envs, bool)
    assert_same(observation, timestep.observation, running, rtol)
    our_step = jax.jit(jax.vmap(env.step))
    library_step = jax.jit(jax.vmap(step, in_axes=(0, 0, 0, None)))
    seen = []
    for number in range(num_steps):
        action = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *[space.sample() for _ in keys])
        state, timestep = our_step(state, action)
        library_state, shown = library_step(library_state, action, keys, number)
        ours = Shown(timestep.observation, timestep.reward, timestep.terminated, timestep.truncated)
        assert_same(shown, ours, running, rtol)
        running &= ~np.asarray(timestep.done)
        seen.append(jax.tree.map(np.asarray, ours))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *seen)


def assert_same(theirs, ours, mask, rtol):
    theirs, ours = (jax.tree.leaves(tree) for tree in (theirs, ours))
    assert len(theirs) == len(ours)
    for their, our in zip(theirs, ours, strict=True):
        our, their = (np.asarray(leaf, float)[mask].ravel() for leaf in (our, their))
        np.testing.assert_allclose(our, their, rtol=rtol, atol=rtol)


def assert_saturates(env):
    """Steps saturate at the bounds of the Box: an action beyond a bound is the bound, and one within it is not."""
    env = env.unwrapped
    low, high = env.action_space.low, env.action_space.high
    middle = (low + high) / 2
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    step = jax.jit(lambda action: env.step(state, action)[1].observation)
    for bound in (low, high):
        within, at, beyond = (np.asarray(step(middle + scale * (bound - middle))) for scale in (0.5, 1, 2))
        np.testing.assert_allclose(beyond, at, rtol=1e-5, atol=1e-6)
        assert not np.allclose(within, at, rtol=1e-5, atol=1e-6)


def keys_of(key, number):
    """The key of a reset and of a step, of a library whose steps want keys, from the key of an episode."""
    reset_key, step_key = jax.random.split(key)
    return reset_key, jax.random.fold_in(step_key, number)
