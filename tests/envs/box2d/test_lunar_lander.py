"""LunarLander keeps the contract, and shows what Gymnasium's shows."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs import LunarLander
from tests.drawing.test_drawing import shrunk


# On a moon, -1.62, it flies out of the observation space, as the reference does.
@pytest.mark.thorough
@pytest.mark.parametrize("env", [LunarLander(continuous=True, enable_wind=True), LunarLander(gravity=-12.0)])
def test_variants_keep_the_contract(env: LunarLander) -> None:
    jaxenvs.check_env(env)


@pytest.mark.thorough
def test_one_environment_that_starts_and_steps_is_a_compiled_function() -> None:
    # XLA aborts where a loop in a kernel has a single turn.
    venv = jaxenvs.make_vec("LunarLander-v3", 1)

    @jax.jit
    def start_and_step(key: jax.Array) -> Any:
        state, _ = venv.reset(key)
        actions = jnp.zeros((2, 1), jnp.int32)
        return jax.lax.scan(lambda state, action: venv.step(state, action), state, actions)[1]

    timestep = start_and_step(jax.random.key(0))
    assert timestep.observation.shape == (2, 1, 8)
    assert not timestep.terminated.any()


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_engines_do_not_depend_on_the_dtype_of_an_action(dtype: type[Any]) -> None:
    fired = [np.asarray(LunarLander()._throttle(dtype(action))) for action in range(4)]
    mains, sides, directions = zip(*fired)
    assert mains == (0, 0, 1, 0)
    assert sides == (0, 1, 0, 1)
    assert directions[1::2] == (-1, 1)


@pytest.mark.thorough
def test_a_picture_is_gymnasiums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean differences of pictures shrunk to a quarter, of 255."""
    pytest.importorskip("Box2D", reason="the reference needs gymnasium[box2d]")
    pytest.importorskip("pygame", reason="Gymnasium draws with pygame")
    from tests.envs.box2d.reference_lander import world_of
    from tests.envs.box2d.reference_memory import stacked

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env: Any = gymnasium.make("LunarLander-v3", render_mode="rgb_array").unwrapped
    states, theirs = [], []
    for seed in range(6):
        env.reset(seed=seed)
        for _ in range(10 * seed):  # falls, without engines and so without sparks
            env.step(0)
        theirs.append(shrunk(np.asarray(env.render())))
        edges = np.array([edge.shape.vertices for edge in env.moon.fixtures], np.float32).reshape(-1, 4)
        states.append((world_of(env), edges))
    worlds, edges = stacked([world for world, _ in states]), jnp.asarray([edges for _, edges in states])
    ours = LunarLander()
    height, width = ours.render_size
    draw = jax.jit(jax.vmap(lambda world, edges: ours.draw(_state(world, edges), height // 4, width // 4)))
    found = np.asarray(draw(worlds, edges), float)
    assert np.abs(found - theirs).mean((1, 2, 3)).max() < 0.6
    assert np.abs(found - np.roll(theirs, 1, axis=0)).mean() > 5


def _state(world: Any, edges: Any) -> Any:
    from jaxenvs.envs.box2d.lunar_lander import LunarLanderState

    nothing = jnp.zeros(())
    return LunarLanderState(world, edges, nothing, nothing, nothing, nothing)
