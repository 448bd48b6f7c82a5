"""The environments of `images` as JAX environments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces

from benchmarks.peers import images
from jaxenvs import Environment, TimeStep, environment, make, static, struct


@struct
class ImagesState:
    """The phase of the film and the steps taken in this episode, int32 ()."""

    phase: jax.Array
    count: jax.Array


@environment
class Images(Environment[ImagesState]):
    """Environment with the spaces, observations, rewards and episode lengths of `images.Images`."""

    kind: str = static(default="channels_first")

    @property
    def observation_space(self) -> spaces.Space[Any]:
        return images.observation_space(self.kind)

    @property
    def action_space(self) -> spaces.Space[Any]:
        return images.action_space(self.kind)

    def reset(self, key: jax.Array) -> tuple[ImagesState, TimeStep]:
        state = ImagesState(jax.random.randint(key, (), 0, images.PHASES), jnp.zeros((), jnp.int32))
        return state, TimeStep.create(self._observe(state))

    def step(self, state: ImagesState, action: Any) -> tuple[ImagesState, TimeStep]:
        reward = images.fits(jnp.asarray(action), state.phase)
        state = ImagesState((state.phase + 1) % images.PHASES, state.count + 1)
        return state, TimeStep.create(self._observe(state), reward, state.count >= images.LENGTH)

    def action_masks(self, state: ImagesState) -> jax.Array:
        return jnp.asarray(images.legal(state.phase))

    def _observe(self, state: ImagesState) -> Any:
        return jax.tree.map(lambda shots: jnp.asarray(shots)[state.phase], images.film(self.kind))


def bits() -> Environment[Any]:
    """Create the environment of `images.bits`."""
    return make("BitFlippingContinuous-v0", n_bits=15)
