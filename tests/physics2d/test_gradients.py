"""A flight can be differentiated: gradients are those of mechanics, and of finite differences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs import physics2d
from jaxenvs.envs.box2d.lunar_lander import WORLD
from jaxenvs.physics2d import WorldState

STEPS = 6
MOTORS = physics2d.Motors(speed=np.array([-0.3, 0.3], np.float32), max_torque=np.full(2, 40, np.float32))
MASSES = 1 / WORLD.inverse_mass
ORIGINS = np.array([[10.0, 12.0], [10.55, 11.4], [9.45, 11.4]])


def start() -> WorldState:
    state = physics2d.start(WORLD, ORIGINS, np.array([0.0, -0.5, 0.5]), jnp.zeros((len(WORLD.edge_body), 4)))
    return state.replace(angular_velocity=jnp.full(3, 0.5))


def fly(thrust: jax.Array) -> Any:
    """x of the centre of mass of all bodies and angle of the hull, after a flight with a force (2,) and a torque."""
    force, torque = jnp.zeros((3, 2)).at[0].set(thrust[:2]), jnp.zeros(3).at[0].set(thrust[2])

    def step(state: WorldState, _: None) -> tuple[WorldState, None]:
        return physics2d.step_in_the_air(WORLD, state, -10.0, MOTORS, force, torque), None

    state = jax.lax.scan(step, start(), length=STEPS)[0]
    return jnp.stack([state.position[:, 0] @ MASSES / MASSES.sum(), state.angle[0]])


@pytest.mark.thorough  # the gradient of a step takes long to compile
def test_gradients_of_a_flight() -> None:
    thrusts = jnp.array([[0.0, 0.0, 0.0], [20.0, 30.0, 5.0]])
    nearby = [thrusts + sign * 2 * direction for direction in jnp.eye(3) for sign in (1, -1)]
    # All in one compiled function, because it takes long to compile.
    both = jax.jit(jax.vmap(jax.jacrev(lambda thrust: (fly(thrust),) * 2, has_aux=True)))
    gradients, flown = both(jnp.concatenate([thrusts, *nearby]))
    gradients, flown = gradients[:2], flown[2:].reshape(3, 2, 2, 2)
    # A force moves the centre of mass as if there were no joints: by h² F / m more in each step than in the last.
    expected = 0.02**2 * STEPS * (STEPS + 1) / 2 / MASSES.sum()
    np.testing.assert_allclose(gradients[:, 0], [[expected, 0, 0]] * 2, rtol=0, atol=1e-3 * expected)
    # Turned it is with its legs, which no formula has.
    for direction, (ahead, behind) in zip(np.eye(3, dtype=np.float32), flown):
        difference = (ahead - behind)[:, 1] / 4
        np.testing.assert_allclose(gradients[:, 1] @ direction, difference, rtol=0.02, atol=2e-6)
