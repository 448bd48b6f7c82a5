"""The learner of a model: its weights, targets and moments, as PyTorch's tensors and as vectors for programs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

from bridge.engine.compilation import to_host
from bridge.translate.learning_state import LearningState, Vectors
from bridge.translate.optimizers import ExportedOptimizer

# From so many rows of a minibatch times parameters, an update takes up to a fifth less time if XLA runs kernels side by
# side; with fewer it takes up to a fifth more (multilayer perceptrons from 64 to 400 wide, on two cores).
LARGE_UPDATE = 8_000_000


class Learner:
    """Parameters, targets and moments: vectors of PyTorch's tensors, by the names of networks.

    PyTorch has the truth whenever somebody else's code may run. While none can (`CompiledAlgorithm._is_sure` knows),
    the vectors are kept from one update to the next, and PyTorch gets what the policy acts with alone. `hand_over`
    ends that: PyTorch gets all, and what comes next reads all.

    Attributes:
      optimizers: PyTorch's, by name. The first one is that of the network that acts.
      exported: what they do.
      num_params: how many numbers are trained.
    """

    def __init__(self, tensors: LearningState, exported: dict[str, ExportedOptimizer]) -> None:
        """
        Args:
          tensors: where PyTorch has all that learning changes.
        """
        self._tensors, self.exported = tensors, exported
        self.optimizers: dict[str, torch.optim.Optimizer] = tensors.optimizers
        self.num_params = tensors.num_params
        self._kept: tuple[Vectors, Vectors, Vectors] | None = None

    def vectors(self) -> tuple[Vectors, Vectors, Vectors]:
        """The params, the targets and the states of optimisers; not for donation. See LearningState.read."""
        return self._tensors.read() if self._kept is None else self._kept

    def leave(self, params: Vectors, targets: Vectors, states: Vectors, keep: bool = False) -> None:
        """Go on from what a program made of the vectors.

        Args:
          keep: whether nobody else's code can run before the next `hand_over`.

        Raises:
          ValueError: parameters of what acts, or with `keep` False any, became NaN. Those from before are kept.
        """
        if not keep:
            params, targets, states = to_host((params, targets, states))
            require_numbers(params)
            self._tensors.write(params, targets, states)
            self._kept = None
            return
        acting = next(iter(self.optimizers))
        vector = np.asarray(params[acting])
        require_numbers({acting: vector})
        self._kept = params, targets, states
        self._tensors.write_params(acting, vector)

    def hand_over(self) -> None:
        """Leave all where PyTorch has it, because somebody else's code may run, and read all of it afterwards."""
        if self._kept is not None:
            self._tensors.write(*to_host(self._kept))
            self._kept = None  # not before all is there

    def settings(self) -> dict[str, dict[str, float]]:
        """The numbers of the optimisers as they are now, but for the learning rates."""
        return {name: each.settings(self.optimizers[name]) for name, each in self.exported.items()}

    def learning_rates(self) -> dict[str, float]:
        """Those of the optimisers as they are now, which need not be equal."""
        return {name: float(each.param_groups[0]["lr"]) for name, each in self.optimizers.items()}

    def is_large(self, batch_size: int) -> bool:
        """Whether kernels of an update are large enough to run side by side."""
        return batch_size * self.num_params >= LARGE_UPDATE


def require_numbers(params: Vectors) -> None:
    """
    Raises:
      ValueError: some are NaN.
    """
    for name, vector in params.items():
        # The sum is NaN if one is, and looking at it is three times as fast.
        if np.isnan(vector.sum()) and (count := int(np.isnan(vector).sum())):
            raise ValueError(
                f"The update made {count} of {vector.size} parameters of {name} NaN, with which SB3 would fail at its "
                "next step. Those from before are kept."
            )


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


def transformations(exported: tuple[tuple[str, ExportedOptimizer], ...], settings: dict[str, dict[str, Any]]) -> Any:
    """What optimisers do, by name, within a program."""
    return {name: each.transformation(settings[name]) for name, each in exported}
