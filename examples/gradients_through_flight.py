"""Find the thrust that flies a lander to a target, by gradients through its flight, including joints and legs.

As long as nothing touches, a step of the physics is differentiable, and so are a hundred steps. Here, gradient descent
finds a constant thrust and torque with which a tumbling lander ends upright at a given place.
Run it: python examples/gradients_through_flight.py [steps of the flight, 30 by default]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxenvs import physics2d
from jaxenvs.envs.box2d.lunar_lander import WORLD

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 30  # of 1/50 s
GRAVITY, LEGS = -10.0, (-0.3, 0.3)  # m/s², and target speeds of the leg motors in rad/s
TARGET = jnp.array([11.0, 9.0])  # m
ITERATIONS = 80
motors = physics2d.Motors(speed=np.array(LEGS, np.float32), max_torque=np.full(2, 40, np.float32))

# Far above the ground, so its edges only matter at the start. The legs hang in their joints.
origins = np.array([[10.0, 12.0], [10.55, 11.4], [9.45, 11.4]])
start = physics2d.start(WORLD, origins, np.array([0.0, -0.5, 0.5]), jnp.zeros((len(WORLD.edge_body), 4)))
start = start.replace(velocity=start.velocity.at[:, 0].set(-1.5), angular_velocity=jnp.full(3, 0.8))


def fly(thrust):
    """Return the physics state after a flight with a force [10 N] and a torque [10 N m] on the hull."""
    force, torque = jnp.zeros((3, 2)).at[0].set(10 * thrust[:2]), jnp.zeros(3).at[0].set(10 * thrust[2])

    def step(world, _):
        return physics2d.step_in_the_air(WORLD, world, GRAVITY, motors, force, torque), None

    return jax.lax.scan(step, start, length=STEPS)[0]


def miss(thrust):
    """Return the squared distances of the hull from the target [m²] and from upright [rad²]."""
    world = fly(thrust)
    return jnp.sum((world.position[0] - TARGET) ** 2) + world.angle[0] ** 2, world


if __name__ == "__main__":
    optimizer = optax.adam(optax.cosine_decay_schedule(1.0, ITERATIONS))

    @jax.jit
    def improve(thrust, moments):
        (loss, world), gradient = jax.value_and_grad(miss, has_aux=True)(thrust)
        updates, moments = optimizer.update(gradient, moments)
        return optax.apply_updates(thrust, updates), moments, loss, world

    thrust = jnp.zeros(3)
    moments = optimizer.init(thrust)
    for iteration in range(ITERATIONS + 1):
        used = thrust
        thrust, moments, loss, world = improve(used, moments)
        if iteration % 20 == 0:
            (x, y), angle = world.position[0], world.angle[0]
            print(
                f"{iteration:3}: {10 * used[0]:6.1f} N, {10 * used[1]:6.1f} N, {10 * used[2]:6.1f} N m lead to "
                f"({x:5.2f}, {y:5.2f}), turned by {angle:5.2f} rad"
            )
