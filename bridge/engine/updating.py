"""A compiled update: a program from what is in the policy, its optimiser and the rollout buffer to the next weights."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import torch
from stable_baselines3.common.buffers import RolloutBuffer

from bridge.buffers.rollout import read_rollout
from bridge.engine.compilation import compile_meanwhile, to_host
from bridge.translate.modules import read_parameters, write_parameters
from bridge.translate.optimizers import ExportedOptimizer, read_optimizer, write_optimizer
from bridge.translate.policies import ExportedPolicy
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import LearnerState, OnPolicySettings, Rollout

# From so many rows of a minibatch times parameters, an update takes up to a fifth less time if XLA runs kernels side by
# side; with fewer it takes up to a fifth more (multilayer perceptrons from 64 to 400 wide, on two cores).
LARGE_UPDATE = 8_000_000


def _update(
    network: ExportedPolicy,
    optimizer: ExportedOptimizer,
    settings: OnPolicySettings,
    optimizer_settings: dict[str, Any],
    state: LearnerState,
    rollout: Rollout,
    key_data: jax.Array,
) -> Any:
    key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
    transformation: Any = optimizer.transformation(optimizer_settings)
    state, metrics = settings.update(network, transformation, state, rollout, draw)  # type: ignore[arg-type]
    # The advantages and the values are on the host, and there is no NaN on a device that somebody might look for.
    metrics.pop("explained_variance")
    return state, jax.random.key_data(key), metrics


@functools.cache
def _programs() -> SimpleNamespace:
    """Jitted once for the process: JAX keeps a program for each structure, so models of one shape share theirs."""

    def jit(in_order: bool) -> Any:
        return jax.jit(_update, static_argnums=(0, 1), compiler_options=compiler_options(in_order=in_order))

    return SimpleNamespace(small=jit(in_order=True), large=jit(in_order=False))


class Update:
    """One update of a model, from what is there now. It changes nothing before its results are all there."""

    def __init__(
        self,
        network: ExportedPolicy,
        optimizer: ExportedOptimizer,
        torch_optimizer: torch.optim.Optimizer,
        parameters: list[torch.nn.Parameter],
        buffer: RolloutBuffer,
        settings: OnPolicySettings,
        key: np.ndarray,
    ) -> None:
        self._torch_optimizer, self._parameters = torch_optimizer, parameters
        self._program = _programs().large if is_large(network, buffer, settings) else _programs().small
        self._arguments = (
            network,
            optimizer,
            settings,
            optimizer.settings(torch_optimizer),
            LearnerState(read_parameters(self._parameters), read_optimizer(torch_optimizer)),
            read_rollout(buffer),
            key,
        )

    def compile_meanwhile(self) -> Future[Any]:
        """Begin to compile the program, so that `run` on arguments of these shapes finds it compiled."""
        return compile_meanwhile(self._program, *self._arguments)

    def run(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Leave the results in the policy and its optimiser.

        Returns:
          The next key, and the metrics but for the explained variance.

        Raises:
          ValueError: weights became NaN. Those from before the update are kept.
        """
        state, key, metrics = to_host(self._program(*self._arguments))
        count = int(np.isnan(state.params).sum())
        if count:
            raise ValueError(
                f"The update made {count} of {state.params.size} weights NaN, with which Stable-Baselines3 would fail "
                f"at its next step. The weights from before it are kept. Its losses: {_described(metrics)}."
            )
        write_parameters(self._parameters, state.params)
        write_optimizer(self._torch_optimizer, state.optimizer_state)
        return np.array(key), {name: value.item() for name, value in metrics.items()}


def is_large(network: ExportedPolicy, buffer: RolloutBuffer, settings: OnPolicySettings) -> bool:
    """Whether kernels of the update are large enough to run side by side."""
    size = buffer.buffer_size * buffer.n_envs
    return min(getattr(settings, "batch_size", size), size) * network.num_parameters >= LARGE_UPDATE


def _described(metrics: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value.item():.3g}" for name, value in metrics.items() if "loss" in name)
