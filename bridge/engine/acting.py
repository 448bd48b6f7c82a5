"""Acting in environments on the host: a policy as one small compiled function per step, not many PyTorch calls."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from bridge.dlpack import to_jax
from bridge.errors import POLICY_IS_NAN
from bridge.translate.policies.exported_policy import ExportedPolicy
from bridge.translate.policies.off_policy_networks import (
    Deterministic,
    ExportedActor,
    ExportedQNetwork,
    ExportedTD3Actor,
)
from bridge.translate.pytorch.modules import Params
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.default_device import accelerator, bound, cached_by_device, on
from jaxenvs.jax_names import config
from jaxenvs.learn import Recalled, Rollout
from jaxenvs.learn.interfaces import Memory, Observation
from jaxenvs.learn.networks.distributions import Distribution
from jaxenvs.learn.on_policy.collecting import advantages, in_chunks


class Actor:
    """Policy that acts with the weights where PyTorch keeps them, so that changes to them take effect at once.

    Attributes:
      network: the policy as JAX functions.
      compiled: the compiled functions: `act`; `predict`, which returns only what `predict` needs; and, for
        actor-critics, `act_and_evaluate` and `evaluate`.
      device: where they run, the device in use when the actor was made; None: JAX's default device.
      is_shared: whether the compiled functions see changes of the weights without a `refresh`.
      copies: whether `refresh` copies the weights, because they are on another device.
    """

    def __init__(self, network: ExportedPolicy | ExportedActor, parameters: Sequence[torch.Tensor]) -> None:
        self.network = network
        self._parameters = parameters
        self.compiled = _compiled_functions(network)
        self.copies = False
        self.device = config.jax_default_device
        self._addresses: list[int] = []
        self.is_shared = False
        self.refresh()

    def refresh(self) -> None:
        """Find the weights. They have moved if user code gave a parameter another tensor."""
        addresses = [parameter.data_ptr() for parameter in self._parameters]
        if self.is_shared and addresses == self._addresses:
            return
        module = self.network.module
        with on(self.device):
            self.copies = not all(is_where_jax_computes(parameter) for parameter in self._parameters)
            is_on_host = accelerator() is None
        self._params: dict[str, np.ndarray] | dict[str, jax.Array] | None = None
        if self.copies:
            return
        shared = {name: to_jax(tensor) for (name, _), tensor in zip(module.inputs, self._parameters, strict=True)}
        self._params = shared
        self._addresses = addresses
        # On a GPU, PyTorch and JAX see each other's writes only when an array is passed from one to the other.
        self.is_shared = is_on_host and addresses == [array.unsafe_buffer_pointer() for array in shared.values()]

    @property
    def params(self) -> dict[str, np.ndarray] | dict[str, jax.Array]:
        """The weights by name: as they are now, or copies from their first use after `refresh`."""
        if self._params is None:
            self._params = self.network.module.read(self._parameters)
        return self._params

    def draw_noise(self, num_envs: int, n_steps: int, sde_sample_freq: int) -> np.ndarray | None:
        """Draw the noise of several steps at once from PyTorch's generator, as SB3 does, with a leading axis `n_steps`.

        Args:
          sde_sample_freq: for how many steps the noise of state-dependent exploration stays the same.

        Returns:
          None for a policy that draws nothing, such as DQN's and TD3's.
        """
        network = self.network
        if network.exploration is not None:  # state-dependent: a key stands for each matrix of noise
            keys = torch.randint(0, 2**32, (-(-n_steps // sde_sample_freq), 2)).numpy().astype(np.uint32)
            return np.repeat(keys, sde_sample_freq, axis=0)
        if draws_nothing(network):
            return None
        return _fill_with_noise(torch.empty((n_steps, num_envs, network.head.size)), network.head.kind).numpy()

    def act(self, observation: Observation, noise: np.ndarray | None) -> tuple[Any, ...]:
        """Return the actions as the policy samples them, and as the environments take them. Neither is writable.

        If the observation is Recalled, the next recurrent state follows.

        Args:
          observation: a batch.
          noise: of one step, from `draw_noise`; None: the most likely actions.

        Raises:
          ValueError: the policy returned NaN, at which Stable-Baselines3 fails too.
          RuntimeError: a Discrete or MultiDiscrete observation is out of range, as in SB3.
        """
        action, to_env, *memory = self.act_on_device(observation, noise)
        return np.asarray(action), np.asarray(to_env), *memory

    def act_on_device(
        self, observation: Observation, noise: np.ndarray | None
    ) -> tuple[jax.Array, jax.Array, *tuple[dict[str, Memory], ...]]:
        """Return what `act` returns, with the actions as JAX arrays. Observations may be JAX arrays too."""
        observation = self.network.from_host(observation)
        action, to_env, was_nan, memory = self.compiled.act(self.params, observation, noise)
        if np.asarray(was_nan):  # bool() of a JAX array takes eight times as long
            raise ValueError(POLICY_IS_NAN)
        return action, to_env, *_remembered(memory)

    # --- Of actor-critic policies -----------------------------------------------------------------------------------

    def act_and_evaluate(self, observation: Observation, noise: np.ndarray) -> tuple[Any, ...]:
        """Act, and evaluate the actions: return what `act` returns, with the values and log-probabilities.

        Returns:
          The two actions of `act`; the values and the log-probabilities, each (num_envs,); and the next recurrent
            state, as in `act`.
        """
        observation = self.network.from_host(observation)
        *results, was_nan, memory = self.compiled.act_and_evaluate(self.params, observation, noise)
        if np.asarray(was_nan):
            raise ValueError(POLICY_IS_NAN)
        return *map(np.asarray, results), *_remembered(memory)

    def evaluate(
        self, rollout: Rollout, done: np.ndarray, last: Observation, gamma: float, gae_lambda: float
    ) -> list[np.ndarray]:
        """Return values, log-probabilities, advantages and returns of a rollout, each (n_steps, num_envs).

        Args:
          rollout: its observations, actions and rewards are read.
          done: whether an episode ended with each step, (n_steps, num_envs).
          last: the observations after the rollout.
          gamma, gae_lambda: of generalized advantage estimation.
        """
        steps, last = (rollout.observation, rollout.action, rollout.reward, done), self.network.from_host(last)
        return [np.asarray(part) for part in self.compiled.evaluate(self.params, steps, last, gamma, gae_lambda)]

    def evaluate_steps(
        self, observation: Observation, action: np.ndarray | jax.Array, weights: np.ndarray
    ) -> list[np.ndarray]:
        """Return values and log-probabilities of a rollout with other weights, a vector, each (n_steps, num_envs)."""
        return [np.asarray(part) for part in self.compiled.evaluate_steps(weights, observation, action)]


def _remembered(memory: dict[str, Memory] | None) -> tuple[dict[str, Memory], ...]:
    """Return a recurrent policy's state on the host as a tuple of one; an empty tuple for other policies."""
    return () if memory is None else (jax.tree.map(np.asarray, memory),)


def is_where_jax_computes(tensor: torch.Tensor) -> bool:
    """Return whether JAX can use the memory of a tensor: PyTorch may have a GPU that JAX lacks, and vice versa."""
    return tensor.device.type == ("cpu" if accelerator() is None else "cuda")


def is_nan(distribution: object) -> jax.Array:
    """Return whether any number of a distribution is NaN, at which Stable-Baselines3 fails; in traced code."""
    if isinstance(distribution, Deterministic):
        return jnp.zeros((), bool)
    return jnp.any(jnp.stack([jnp.isnan(leaf).any() for leaf in jax.tree.leaves(distribution)]))


@cached_by_device
def _compiled_functions(network: Any) -> SimpleNamespace:
    """Return the compiled functions of a network.

    There is one set for each network, because finding it by static arguments would take as long as a step.
    """

    def sample(distribution: Distribution, noise: jax.Array) -> jax.Array:
        return distribution.sample(noise if network.exploration is None else jax.random.wrap_key_data(noise))

    def act(params: Params, observation: Observation, noise: jax.Array | None) -> tuple[object, ...]:
        distribution = network.distribution(params, observation)
        action = distribution.mode() if noise is None else sample(distribution, noise)
        return action, network.to_env(action), is_nan(distribution), recall(params, observation)

    def recall(params: Params, observation: Observation) -> dict[str, Memory] | None:
        return network.recall(params, observation) if isinstance(observation, Recalled) else None

    def predict(params: Params, observation: Observation, noise: jax.Array | None) -> tuple[object, ...]:
        return act(params, observation, noise)[1:]

    def act_and_evaluate(params: Params, observation: Observation, noise: jax.Array) -> tuple[object, ...]:
        distribution, value = network.apply(params, observation)
        action = sample(distribution, noise)
        evaluated = value, distribution.log_prob(action), is_nan(distribution)
        return action, network.to_env(action), *evaluated, recall(params, observation)

    def evaluate_steps(params: Params, observation: Observation, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        def rows(inputs: tuple[Observation, jax.Array]) -> tuple[jax.Array, jax.Array]:
            distribution, value = network.apply(params, inputs[0])
            return value, distribution.log_prob(inputs[1])

        evaluated: tuple[jax.Array, jax.Array] = in_chunks(rows, (observation, action))
        return evaluated

    def evaluate(
        params: Params,
        steps: tuple[Observation, jax.Array, jax.Array, jax.Array],
        last: Observation,
        gamma: float,
        gae_lambda: float,
    ) -> tuple[jax.Array, ...]:
        observation, action, reward, done = steps
        value, log_prob = evaluate_steps(params, observation, action)
        advantage = advantages(reward, value, done, network.apply(params, last)[1], gamma, gae_lambda)
        return value, log_prob, advantage, advantage + value

    jit = functools.partial(jax.jit, compiler_options=compiler_options())
    functions = (act, predict, act_and_evaluate, evaluate, evaluate_steps)
    compiled = {function.__name__: bound(jit(function)) for function in functions}
    return SimpleNamespace(**compiled)


class NoiseSource:
    """Callable that draws what `Actor.draw_noise` does for one step, in less time: it draws into memory that it keeps.

    It is only for networks that draw something.
    """

    def __init__(self, network: ExportedPolicy | ExportedActor) -> None:
        self._kind, self._size = network.head.kind, network.head.size
        # Tensors that are not in use, by their number of rows, each with its memory as a NumPy array. A call takes one
        # out, because another thread or a signal handler may draw at the same time.
        self._free: dict[int, list[tuple[torch.Tensor, np.ndarray]]] = {}

    def __call__(self, num_rows: int) -> np.ndarray:
        """Return the noise of one step, (num_rows, n), as a new array."""
        free = self._free.setdefault(num_rows, [])
        try:
            tensor, memory = free.pop()
        except IndexError:
            tensor = torch.empty((num_rows, self._size))
            memory = tensor.numpy()
        _fill_with_noise(tensor, self._kind)
        noise = memory.copy()
        free.append((tensor, memory))
        return noise


def draws_nothing(network: ExportedPolicy | ExportedActor) -> bool:
    """Return whether a policy's actions are determined by its observations, as DQN's and TD3's are."""
    return isinstance(network, (ExportedQNetwork, ExportedTD3Actor))  # a union type would be made in each call


def _fill_with_noise(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """Fill a tensor with noise as `Distribution.noise`, from PyTorch's generator."""
    if kind == "box":
        return tensor.normal_()
    if kind == "multi_binary":
        return tensor.uniform_().logit_(eps=1e-7)
    # Gumbel noise. torch.multinomial takes the action with the largest sum of logit and noise, written as a quotient,
    # from the same draw.
    return tensor.exponential_().log_().neg_()


def forget_graph(policy: torch.nn.Module) -> None:
    """Detach the tensors that an action distribution keeps of its last forward pass.

    Distributions of SB3 keep their last mean, logits or sample. After a gradient step of the user's, these still refer
    to its graph, and PyTorch refuses to copy such a policy. In SB3, the next action replaces them; compiled functions
    never touch them.
    """
    for owner in (policy, getattr(policy, "actor", None)):
        kept = getattr(owner, "action_dist", None)
        inner = getattr(kept, "distribution", None)
        for each in (kept, *(inner if isinstance(inner, list) else [inner])):
            for name, value in getattr(each, "__dict__", {}).items():
                if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                    setattr(each, name, value.detach())
