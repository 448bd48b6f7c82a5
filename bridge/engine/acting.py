"""Acting in environments on the host: a policy as one small program a step, in the place of PyTorch's many calls."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy

from bridge.dlpack import to_jax
from bridge.errors import POLICY_IS_NAN
from bridge.translate.policies.exported_network import Params
from bridge.translate.policies.exported_policy import ExportedPolicy
from bridge.translate.policies.off_policy_networks import (
    Deterministic,
    ExportedActor,
    ExportedQNetwork,
    ExportedTD3Actor,
)
from bridge.translate.pytorch.modules import read_parameters
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import Recalled, Rollout
from jaxenvs.learn.interfaces import Observation
from jaxenvs.learn.networks.distributions import Distribution
from jaxenvs.learn.networks.lstm import Memory
from jaxenvs.learn.on_policy.collecting import advantages, in_chunks


class Actor:
    """A policy that acts with its weights where PyTorch keeps them, so that whoever changes these is followed at once.

    Attributes:
      network: the policy as programs.
      programs: `act`, and `predict`, which gives no more than that takes; of actor-critics the others below.
    """

    network: ExportedPolicy | ExportedActor

    def __init__(self, network: ExportedPolicy | ExportedActor, parameters: Sequence[torch.Tensor]) -> None:
        self.network = network
        self._parameters = parameters
        self.programs = _programs(network)
        self._addresses: list[int] = []
        self._is_shared = False
        self.refresh()

    def refresh(self) -> None:
        """Look where the weights are. They have moved if somebody gave a parameter another tensor."""
        addresses = [parameter.data_ptr() for parameter in self._parameters]
        if self._is_shared and addresses == self._addresses:
            return
        shapes = dict(self.network.module.inputs)
        if not all(is_where_jax_computes(parameter) for parameter in self._parameters):
            parts = np.split(read_parameters(self._parameters), np.cumsum([math.prod(s) for s in shapes.values()])[:-1])
            self.params: dict[str, np.ndarray] | dict[str, jax.Array] = {
                name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
            }
            return
        shared = {name: to_jax(parameter) for name, parameter in zip(shapes, self._parameters, strict=True)}
        self.params = shared
        self._addresses = addresses
        # On a GPU PyTorch and JAX know of each other's writes only when an array is handed over.
        self._is_shared = jax.default_backend() == "cpu" and addresses == [
            array.unsafe_buffer_pointer() for array in shared.values()
        ]

    def draw_noise(self, num_envs: int, n_steps: int, sde_sample_freq: int) -> np.ndarray | None:
        """The noise of so many steps, in one draw from PyTorch's generator, from which SB3 draws: n_steps in front.

        None for a policy that draws nothing, as those of DQN and TD3.
        """
        if self.network.exploration is None:
            return draw_noise(self.network, (n_steps, num_envs))
        # Of the matrices of state-dependent exploration a key stands for each.
        keys = torch.randint(0, 2**32, (-(-n_steps // sde_sample_freq), 2)).numpy().astype(np.uint32)
        return np.repeat(keys, sde_sample_freq, axis=0)

    def act(self, observation: Observation, noise: np.ndarray | None) -> tuple[Any, ...]:
        """Actions as the policy samples them, and as the environments take them. Neither is for writing.

        If the observation is Recalled, then also what is remembered next.

        Args:
          observation: a batch.
          noise: of one step, as `draw_noise` gives it; without, the most likely actions.

        Raises:
          ValueError: what the policy computes is NaN, at which Stable-Baselines3 fails too.
          RuntimeError: a Discrete or MultiDiscrete observation is out of range, as in SB3.
        """
        observation = self.network.from_host(observation)
        action, to_env, was_nan, memory = self.programs.act(self.params, observation, noise)
        if np.asarray(was_nan):  # bool() of a JAX array takes eight times as long
            raise ValueError(POLICY_IS_NAN)
        return np.asarray(action), np.asarray(to_env), *_remembered(memory)


class JudgingActor(Actor):
    """An actor with values: that of an actor-critic policy."""

    network: ExportedPolicy

    def act_and_judge(self, observation: Observation, noise: np.ndarray) -> tuple[Any, ...]:
        """The two actions that `act` gives; the values and the logarithms of the probabilities, each (num_envs,); and
        what is remembered next, as in `act`."""
        observation = self.network.from_host(observation)
        *results, was_nan, memory = self.programs.act_and_judge(self.params, observation, noise)
        if np.asarray(was_nan):
            raise ValueError(POLICY_IS_NAN)
        return *map(np.asarray, results), *_remembered(memory)

    def judge(
        self,
        rollout: Rollout,
        judged: tuple[np.ndarray, np.ndarray] | None,
        done: np.ndarray,
        last: Observation,
        gamma: float,
        gae_lambda: float,
    ) -> list[np.ndarray]:
        """Values, logarithms of probabilities, advantages and returns of a rollout, each (n_steps, num_envs).

        Args:
          rollout: its observations, actions and rewards are read.
          judged: the values and logarithms of probabilities, if these are known.
          last: the observations after the rollout.
        """
        steps, last = (rollout.observation, rollout.action, rollout.reward, done), self.network.from_host(last)
        return [np.asarray(part) for part in self.programs.judge(self.params, steps, judged, last, gamma, gae_lambda)]


def _remembered(memory: dict[str, Memory] | None) -> tuple[Any, ...]:
    """What a recurrent policy remembers, on the host; nothing of others."""
    return () if memory is None else (jax.tree.map(np.asarray, memory),)


def is_where_jax_computes(tensor: torch.Tensor) -> bool:
    """Whether JAX can use the memory of a tensor: PyTorch may have a GPU that JAX has not, and the other way round."""
    return tensor.device.type == ("cpu" if jax.default_backend() == "cpu" else "cuda")


def unscaled(policy: ActorCriticPolicy, actions: np.ndarray) -> np.ndarray:
    """Actions as SB3's policy gives them, in the bounds of a Box if they are squashed."""
    is_squashed = isinstance(policy.action_space, spaces.Box) and policy.squash_output
    return policy.unscale_action(actions) if is_squashed else actions


def is_nan(distribution: object) -> jax.Array:
    """Whether any number of a distribution is NaN, at which Stable-Baselines3 fails; within a program."""
    if isinstance(distribution, Deterministic):
        return jnp.zeros((), bool)
    return jnp.any(jnp.stack([jnp.isnan(leaf).any() for leaf in jax.tree.leaves(distribution)]))


@functools.lru_cache(maxsize=64)
def _programs(network: Any) -> SimpleNamespace:
    """Of a network each, because to look for it among static arguments would take as long as a step does."""

    def sample(distribution: Distribution, noise: jax.Array) -> jax.Array:
        return distribution.sample(noise if network.exploration is None else jax.random.wrap_key_data(noise))

    def act(params: Params, observation: Observation, noise: jax.Array | None) -> tuple[jax.Array, ...]:
        distribution = network.distribution(params, observation)
        action = distribution.mode() if noise is None else sample(distribution, noise)
        return action, network.to_env(action), is_nan(distribution), recall(params, observation)

    def recall(params: Params, observation: Observation) -> Any:
        return network.recall(params, observation) if isinstance(observation, Recalled) else None

    def predict(params: Params, observation: Observation, noise: jax.Array | None) -> tuple[jax.Array, ...]:
        return act(params, observation, noise)[1:]

    def act_and_judge(params: Params, observation: Observation, noise: jax.Array) -> tuple[jax.Array, ...]:
        distribution, value = network.apply(params, observation)
        action = sample(distribution, noise)
        judged = value, distribution.log_prob(action), is_nan(distribution)
        return action, network.to_env(action), *judged, recall(params, observation)

    def judge(
        params: Params,
        steps: tuple[Observation, jax.Array, jax.Array, jax.Array],
        judged: tuple[jax.Array, jax.Array] | None,
        last: Observation,
        gamma: float,
        gae_lambda: float,
    ) -> tuple[jax.Array, ...]:
        def rows(inputs: tuple[Observation, jax.Array]) -> tuple[jax.Array, jax.Array]:
            distribution, value = network.apply(params, inputs[0])
            return value, distribution.log_prob(inputs[1])

        observation, action, reward, done = steps
        value, log_prob = in_chunks(rows, (observation, action)) if judged is None else judged
        advantage = advantages(reward, value, done, network.apply(params, last)[1], gamma, gae_lambda)
        return value, log_prob, advantage, advantage + value

    jit = functools.partial(jax.jit, compiler_options=compiler_options())
    programs = {function.__name__: jit(function) for function in (act, predict, act_and_judge, judge)}
    return SimpleNamespace(**programs)


def draw_noise(network: ExportedPolicy | ExportedActor, lead: tuple[int, ...]) -> np.ndarray | None:
    """As `Distribution.noise`, from PyTorch's generator, for a policy whose exploration is not state-dependent."""
    if isinstance(network, ExportedQNetwork | ExportedTD3Actor):
        return None
    shape = (*lead, network.head.size)
    if network.head.kind == "box":
        return torch.randn(shape).numpy()
    if network.head.kind == "multi_binary":
        return torch.logit(torch.rand(shape), eps=1e-7).numpy()
    # Of Gumbel, whose greatest sum with the logits torch.multinomial takes, written as a quotient, from the same draw.
    return -torch.empty(shape).exponential_().log().numpy()
