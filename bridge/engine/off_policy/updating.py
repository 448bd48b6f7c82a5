"""Updates of an off-policy algorithm as one program, from what was sampled on the host."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from gymnasium import spaces

from bridge.engine.compilation import to_host
from bridge.engine.off_policy.plan import OffPolicyPlan
from bridge.engine.on_policy.updating import LARGE_UPDATE
from bridge.translate.optimizers import ExportedOptimizer
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import Transitions
from jaxenvs.learn.off_policy.settings import OffPolicySettings, OffPolicyState


@functools.lru_cache(maxsize=64)
def _program(policy: Any, optimizers: tuple[tuple[str, ExportedOptimizer], ...], in_order: bool) -> Callable[..., Any]:
    """Of a policy each, because to look for it among static arguments would take as long as a small update does."""

    def update(
        settings: OffPolicySettings,
        optimizer_settings: dict[str, dict[str, Any]],
        learner: OffPolicyState,
        batches: Transitions,
        key_data: jax.Array,
        first: Any,
    ) -> Any:
        key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
        transformations: Any = {name: each.transformation(optimizer_settings[name]) for name, each in optimizers}
        num = batches.reward.shape[0]
        example = jax.tree.map(lambda leaf: leaf[0], batches)
        noise = settings.noise(policy, learner.params, example, draw, num)
        learner, metrics = settings.updates(policy, transformations, learner, batches, noise, first=first)
        return learner, jax.random.key_data(key), metrics

    return jax.jit(update, compiler_options=compiler_options(in_order=in_order))


class Updates:
    """Updates of one plan, from samples of SB3's.

    What the policy acts with is written into PyTorch's after each update, and the rest (critics, targets, moments, of
    SAC much more) when somebody may look: `show`.
    """

    def __init__(self, plan: OffPolicyPlan, batch_size: int) -> None:
        self._plan = plan
        self._program = _program(plan.policy, tuple(plan.optimizers.items()), not is_large(plan, batch_size))
        self._learner: OffPolicyState | None = None
        self._is_shown = True

    def show(self) -> None:
        """Leave all that was learned where PyTorch has it, for somebody who may look."""
        if not self._is_shown:
            assert self._learner is not None
            write_learner(self._plan, self._learner)
            self._is_shown = True

    def look_again(self) -> None:
        """Read what learning changes from PyTorch before the next update: somebody may have changed it there."""
        self.show()
        self._learner = None

    def run(
        self,
        settings: OffPolicySettings,
        num_updates: int,
        samples: Sequence[Any],
        action_space: spaces.Space[Any],
        key: np.ndarray,
        first: int,
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Learn from samples, and leave what the policy acts with where PyTorch has it.

        Args:
          settings: of now.
          num_updates: how many there were before.
          samples: of a batch for each gradient step.
          key: its data.
          first: the number of the first one among those after one collection.

        Returns:
          The next key, and the means of the metrics.

        Raises:
          ValueError: parameters became NaN. Those from before are kept.
        """
        learner = read_learner(self._plan, num_updates) if self._learner is None else self._learner
        batches = _stacked([_transitions(sample, action_space, settings.gamma) for sample in samples])
        arguments = (optimizer_settings(self._plan), learner, batches, key, np.int32(first))
        learner, key, metrics = self._program(settings, *arguments)
        means = {name: value.item() for name, value in to_host(metrics).items()}
        acting = next(iter(self._plan.torch_optimizers))  # the actor, or the only network
        names = learner.params if any(math.isnan(value) for value in means.values()) else [acting]
        _require_numbers({name: np.asarray(learner.params[name]) for name in names})
        assert self._plan.learning is not None
        self._plan.learning.write_params(acting, learner.params[acting])
        self._learner, self._is_shown = learner, False
        return np.array(key), means


def read_learner(plan: OffPolicyPlan, num_updates: int) -> OffPolicyState:
    """What updates change, from where PyTorch has it."""
    assert plan.learning is not None
    params, targets, states = plan.learning.read()
    params, targets, states = committed((params, targets, states))
    return OffPolicyState(params, targets, states, np.int32(num_updates))  # type: ignore[arg-type]


def committed(tree: Any) -> Any:
    """Arrays bound to the CPU, as those are that share memory with PyTorch; on a GPU none are.

    JAX compiles a program anew for each way in which its arguments are bound or free, and the program binds the rest.
    """
    first = jax.tree.leaves(tree)[0]
    if jax.default_backend() != "cpu" or getattr(first, "committed", False):
        return tree
    device = jax.devices()[0]

    def bind(leaf: Any) -> Any:
        # Without a copy of what is free. A number of NumPy's is one every time.
        return jax.device_put(leaf, device) if isinstance(leaf, jax.Array) or leaf.ndim else leaf

    return jax.tree.map(bind, tree)


def write_learner(plan: OffPolicyPlan, learner: OffPolicyState) -> None:
    """Leave it there.

    Raises:
      ValueError: parameters became NaN. Those from before are kept.
    """
    assert plan.learning is not None
    params, targets, states = to_host((learner.params, learner.targets, learner.optimizer_states))
    _require_numbers(params)
    plan.learning.write(params, targets, states)


def is_large(plan: OffPolicyPlan, batch_size: int) -> bool:
    """Whether kernels of an update are large enough to run side by side."""
    assert plan.learning is not None
    return batch_size * plan.learning.num_params >= LARGE_UPDATE


def _require_numbers(params: dict[str, np.ndarray]) -> None:
    for name, vector in params.items():
        # The sum is NaN if one is, and looking at it is three times as fast.
        if np.isnan(vector.sum()) and (count := int(np.isnan(vector).sum())):
            raise ValueError(
                f"The update made {count} of {vector.size} parameters of {name} NaN, with which SB3 would fail at its "
                "next step. Those from before are kept."
            )


def optimizer_settings(plan: OffPolicyPlan) -> dict[str, dict[str, float]]:
    """The numbers of the optimisers as they are now, but for the learning rate."""
    return {name: each.settings(plan.torch_optimizers[name]) for name, each in plan.optimizers.items()}


def _transitions(sample: Any, action_space: spaces.Space[Any], gamma: float) -> Any:
    """What SB3 samples as programs take it."""
    discounts = getattr(sample, "discounts", None)
    going_on = 1 - _array(sample.dones)[:, 0]
    action = _array(sample.actions)
    return Transitions(
        observation=_map(_array, sample.observations),
        action=action[:, 0] if isinstance(action_space, spaces.Discrete) else action,
        reward=_array(sample.rewards)[:, 0],
        next_observation=_map(_array, sample.next_observations),
        discount=going_on * (np.float32(gamma) if discounts is None else _array(discounts)[:, 0]),
    )


def _stacked(batches: list[Transitions]) -> Transitions:
    if len(batches) == 1:
        return jax.tree.map(lambda leaf: leaf[None], batches[0])  # type: ignore[no-any-return]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)  # type: ignore[no-any-return]


def _array(tensor: torch.Tensor) -> Any:
    return tensor.cpu().numpy()


def _map(function: Callable[[Any], Any], observation: Any) -> Any:
    if isinstance(observation, dict):
        return {name: function(part) for name, part in observation.items()}
    return function(observation)
