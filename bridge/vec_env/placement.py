"""The rule by which compiled functions run on the CPU or on JAX's accelerator; docs/gpu.md says what it was made from.

A call on a GPU takes a millisecond or more, however little it computes, and little longer if it computes much. So a
function runs on the CPU unless its work pays for that. Work is counted in multiply-adds: rows times parameters. Two
cores of a CPU take 0.12 ms for a million in an update, and less for acting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax

from jaxenvs import VectorEnv
from jaxenvs.compilation.default_device import accelerator, host

DEVICES = ("auto", "cpu", "cuda")

# Environments on the host: a step that acts on the GPU takes 1.3 ms longer, and an update there 4 ms longer, for the
# weights that it brings there and back. This many multiply-adds take as long on the CPU.
STEP_ON_HOST, UPDATE_ON_HOST = 11e6, 33e6
# If PyTorch has the policy on a GPU, an update on the CPU brings the weights there and back: 1 ms, an estimate.
COPIES = 8e6
# Off-policy with JAX environments: a step in the compiled function takes 0.1 ms longer on the GPU.
STEP_IN_JAX = 1e6
# `JaxVecEnv.step` of CartPole, the cheapest environment, takes equally long with some 5,000 environments.
MANY_ENVS = 4096
# `predict` with a policy on the CPU takes the weights to the GPU in each call.
PREDICT = 700e6


class Placement(NamedTuple):
    """Device of compiled functions, and why they run there.

    Attributes:
      device: None: on JAX's default device.
      reason: why, as a line for `print(model.plan)`; empty if JAX has only one device.
    """

    device: jax.Device | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Work:
    """Sizes of a training, on which its placement depends.

    Attributes:
      in_jax: whether environments are stepped in the compiled function.
      on_policy: whether the algorithm is PPO or its kind.
      per_step: multiply-adds for each step of all environments: of acting, and of its share of the updates.
      updates_per_step: calls that update, for each step of all environments.
      pictures: whether the policy convolves.
      policy_on_gpu: whether PyTorch has the policy on a GPU.
      box2d: whether the compiled function steps Box2D's environments.
    """

    in_jax: bool
    on_policy: bool
    per_step: float
    updates_per_step: float = 0.0
    pictures: bool = False
    policy_on_gpu: bool = False
    box2d: bool = False

    def pays(self) -> tuple[bool, str]:
        """Return whether it pays for a GPU, and why."""
        if self.box2d:
            return False, "Box2D's steps are hundreds of small kernels"
        if self.pictures and not (self.in_jax or self.on_policy) and self.policy_on_gpu:
            return False, "PyTorch acts and learns on pictures faster, step by step"
        if self.pictures:
            return True, "the policy sees pictures"
        if self.in_jax and self.on_policy:
            return True, "one function steps the environments and learns"
        of_update = UPDATE_ON_HOST - COPIES * self.policy_on_gpu
        least = STEP_IN_JAX if self.in_jax else STEP_ON_HOST + of_update * self.updates_per_step
        sizes = f"a step takes {self.per_step:,.0f} multiply-adds, and a GPU pays from {least:,.0f} on"
        return self.per_step >= least, sizes


def place(asked: str, pays: Callable[[], tuple[bool, str]]) -> Placement:
    """Return where functions run.

    Args:
      asked: "cpu" or "cuda"; anything else: as `pays` says.
      pays: returns whether the work pays for a GPU, and why.
    """
    fast = accelerator()
    cpu = None if fast is None else host()
    if fast is None or cpu is None:
        return Placement()
    on_gpu, reason = (asked == "cuda", f"of device={asked!r}") if asked in DEVICES[1:] else pays()
    used = fast if on_gpu else cpu
    return Placement(None if on_gpu else cpu, f"device: {used.platform}:{used.id}, because {reason}")


def of_environments(asked: str, venv: VectorEnv) -> Placement:
    """Return where a JaxVecEnv steps its environments."""
    return place(asked, lambda: (venv.num_envs >= MANY_ENVS and not is_box2d(venv), "of their number"))


def is_box2d(venv: VectorEnv) -> bool:
    """Return whether environments are Box2D's, whose step has 180 rounds, one after the other."""
    env: object = venv.env.unwrapped
    return type(env).__module__.startswith("jaxenvs.envs.box2d.")
