"""A compiled update: a program from what is in the policy, its optimiser and the rollout buffer to the next weights."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer

from bridge.buffers.rollout import read_rollout
from bridge.engine.compilation import compile_meanwhile, to_host
from bridge.engine.on_policy.plan import POLICY, Plan
from bridge.translate.optimizers import ExportedOptimizer
from bridge.translate.policies import ExportedPolicy
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import LearnerState, OnPolicySettings, Rollout

# From so many rows of a minibatch times parameters, an update takes up to a fifth less time if XLA runs kernels side by
# side; with fewer it takes up to a fifth more (multilayer perceptrons from 64 to 400 wide, on two cores).
LARGE_UPDATE = 8_000_000


@functools.lru_cache(maxsize=64)
def _program(network: ExportedPolicy, optimizer: ExportedOptimizer, in_order: bool) -> Any:
    """Of a policy each, because to look for it among static arguments would take as long as a small update does."""

    def update(
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

    return jax.jit(update, compiler_options=compiler_options(in_order=in_order))


class Update:
    """One update of a model, from what is there now. It changes nothing before its results are all there."""

    def __init__(self, plan: Plan, buffer: RolloutBuffer, settings: OnPolicySettings, key: np.ndarray) -> None:
        assert plan.network is not None
        assert plan.optimizer is not None
        self._plan = plan
        self._program = _program(plan.network, plan.optimizer, not is_large(plan.network, buffer, settings))
        self._arguments = (settings, optimizer_settings(plan), read_learner(plan), read_rollout(buffer), key)

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
        write_learner(self._plan, state)
        return np.array(key), {name: value.item() for name, value in metrics.items()}


def optimizer_settings(plan: Plan) -> dict[str, float]:
    """The numbers of the optimiser as they are now, but for the learning rate."""
    assert plan.optimizer is not None
    assert plan.learning is not None
    return plan.optimizer.settings(plan.learning.optimizers[POLICY])


def read_learner(plan: Plan) -> LearnerState:
    """Parameters and moments, from where PyTorch has them."""
    assert plan.learning is not None
    params, _, states = plan.learning.read()
    return LearnerState(params[POLICY], states[POLICY])


def write_learner(plan: Plan, learner: LearnerState) -> None:
    """Leave them there."""
    assert plan.learning is not None
    plan.learning.write({POLICY: learner.params}, {}, {POLICY: learner.optimizer_state})


def is_large(network: ExportedPolicy, buffer: RolloutBuffer, settings: OnPolicySettings) -> bool:
    """Whether kernels of the update are large enough to run side by side."""
    size = buffer.buffer_size * buffer.n_envs
    return min(getattr(settings, "batch_size", size), size) * network.num_parameters >= LARGE_UPDATE


def _described(metrics: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value.item():.3g}" for name, value in metrics.items() if "loss" in name)
