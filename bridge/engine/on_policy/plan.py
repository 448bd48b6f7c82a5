"""The plan: what of a training is compiled, and why the rest is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import torch
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv

from bridge.buffers.tensor_rollout import TensorRolloutBuffer
from bridge.engine.acting import JudgingActor
from bridge.engine.on_policy.pipelining import why_not as why_not_pipelined
from bridge.errors import NotCompilable
from bridge.translate.learning_state import LearningState
from bridge.translate.optimizers import ExportedOptimizer, export_optimizer
from bridge.translate.policies import ExportedPolicy, export_policy, require_trainable
from bridge.translate.snapshot import Snapshot
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.wrappers import Chain
from jaxenvs.compilation import is_usable, require_usable

ENGINES = ("auto", "xla", "torch")

# Under this name a plan has the one network that PPO and A2C train.
POLICY = "policy"

# Those that a compiled rollout fills and a compiled update reads.
BUFFERS = (RolloutBuffer, DictRolloutBuffer)


@dataclasses.dataclass
class Plan:
    """How a model trains: `print(model.plan)`.

    Attributes:
      network: the policy as a program; None if it has no translation.
      chain: the environments and the wrappers around them as a program; None if they have none.
      actor: the policy as one program a step, for environments on the host; None if they or it are no such.
      optimizer: what its update does; None if the update is SB3's.
      learning: then, where PyTorch has what it changes: of one network, POLICY.
      parameters: of the policy, in the order in which the network takes them.
      tensors: whether collecting is that of the torch policy, on tensors that stay on the device.
      reasons: why not everything is compiled, a sentence each.
      not_pipelined: why the environments do not step in two groups, if they were to; else None.
      pipelines: whether they do.
    """

    network: ExportedPolicy | None = None
    chain: Chain | None = None
    actor: JudgingActor | None = None
    optimizer: ExportedOptimizer | None = None
    learning: LearningState | None = None
    parameters: list[torch.nn.Parameter] = dataclasses.field(default_factory=list)
    tensors: bool = False
    reasons: list[str] = dataclasses.field(default_factory=list)
    not_pipelined: str | None = None
    pipelines: bool = False

    # What it was made for, to notice when that changes.
    _inputs: tuple[Any, ...] = ()
    _snapshot: Snapshot | None = None

    @property
    def collects(self) -> bool:
        """Whether collecting is compiled."""
        return self.network is not None and self.chain is not None

    @property
    def updates(self) -> bool:
        """Whether the update is compiled."""
        return self.network is not None and self.optimizer is not None

    def acts_as_planned(self) -> bool:
        """Whether the policy still computes what the actor does, whatever its weights are."""
        return self._snapshot is not None and self._snapshot.is_current(learns=False)

    def __str__(self) -> str:
        collecting = "SB3's code"
        if self.collects:
            collecting = "compiled"
        elif self.actor is not None:
            collecting = f"acting compiled, the environments on the host{', in two groups' if self.pipelines else ''}"
        elif self.tensors:
            collecting = "tensors on the device"
        updating = "compiled" if self.updates else "SB3's code"
        reasons = [f"not compiled: {reason}" for reason in self.reasons]
        if self.not_pipelined is not None:
            reasons.append(f"not pipelined: {self.not_pipelined}")
        return "\n".join([f"collecting: {collecting}", f"updating: {updating}", *reasons])

    def is_current(
        self, engine: str, policy: ActorCriticPolicy, env: VecEnv | None, buffer: RolloutBuffer, pipeline: bool
    ) -> bool:
        """Whether a plan made now would be this one: callbacks may have changed anything in between."""
        if self.network is not None and not is_usable():  # after a fork
            return False
        if not _are_same(self._inputs, (engine, policy, policy.optimizer, env, type(buffer), pipeline)):
            return False
        if self._snapshot is not None and not self._snapshot.is_current():
            return False
        try:
            return self.optimizer is None or export_optimizer(policy.optimizer) == self.optimizer
        except NotCompilable:
            return False


def make_plan(
    engine: str, policy: ActorCriticPolicy, env: VecEnv | None, buffer: RolloutBuffer, pipeline: bool = False
) -> Plan:
    """
    Raises:
      NotCompilable: with engine "xla", if not everything can be compiled.
    """
    plan = _compiled_plan(engine, policy, env, buffer)
    plan._inputs = (engine, policy, policy.optimizer, env, type(buffer), pipeline)
    if pipeline:
        plan.not_pipelined = why_not_pipelined(plan.network, plan.actor is not None, env)
        plan.pipelines = plan.not_pipelined is None
    return plan


def _compiled_plan(engine: str, policy: ActorCriticPolicy, env: VecEnv | None, buffer: RolloutBuffer) -> Plan:
    plan = Plan()
    is_plain = type(env) is JaxVecEnv
    if engine == "torch" or type(buffer) is TensorRolloutBuffer:
        plan.tensors = is_plain and _share_a_device() and type(buffer) in (*BUFFERS, TensorRolloutBuffer)
        plan.reasons.append('The engine is "torch".' if engine == "torch" else "The buffer is a TensorRolloutBuffer.")
        return plan
    if type(buffer) not in BUFFERS:
        plan.reasons.append(f"The rollout buffer is a {type(buffer).__name__}, not SB3's.")
    elif compiles(plan.reasons):
        plan._snapshot = Snapshot(policy)
        try:
            if engine == "auto" and is_slower_compiled(policy):
                raise NotCompilable("On a CPU, PyTorch runs convolutions faster than XLA.")
            plan.network, plan.parameters = export_policy(policy), plan._snapshot.parameters
            require_trainable(policy, plan.network)
            plan.learning = LearningState({POLICY: plan.parameters}, {}, {POLICY: policy.optimizer})
            plan.learning.read()  # which may find what has no translation
            plan.optimizer = export_optimizer(policy.optimizer)
        except NotCompilable as reason:
            plan.reasons.append(str(reason))
        try:
            plan.chain = Chain.of(env) if env is not None else None
        except NotCompilable as reason:
            plan.reasons.append(str(reason))
            if plan.network is not None:
                plan.actor = JudgingActor(plan.network, plan.parameters)
    if engine == "xla" and plan.reasons:
        raise NotCompilable(f'engine="xla" cannot compile this model: {" ".join(plan.reasons)}')
    # On a CPU NumPy arrays are tensors without a copy, and SB3's own loop is the faster one.
    on_cpu = jax.default_backend() == "cpu"
    plan.tensors = plan.network is None and type(buffer) in BUFFERS and is_plain and not on_cpu and _share_a_device()
    return plan


def is_slower_compiled(policy: torch.nn.Module) -> bool:
    """Whether a policy acts and learns slower in XLA than in PyTorch: with convolutions on a CPU, and with no others.

    Both acting and gradient steps of Atari's images do. The cells with CnnPolicy of benchmarks/never_slower.py hold the
    rule.
    """
    convolves = any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in policy.modules())
    return convolves and jax.default_backend() == "cpu"


def require_engine(engine: str) -> str:
    """
    Raises:
      ValueError: there is no such engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}, got {engine!r}.")
    return engine


def compiles(reasons: list[str]) -> bool:
    """Whether JAX can run programs here. After a fork it cannot, and SB3's code still can."""
    try:
        require_usable()
    except RuntimeError as error:
        reasons.append(str(error))
        return False
    return True


def _share_a_device() -> bool:
    """Whether PyTorch can hold what JAX computes: a CPU build cannot, if JAX has a GPU."""
    return jax.default_backend() == "cpu" or torch.cuda.is_available()


def _are_same(these: tuple[Any, ...], those: tuple[Any, ...]) -> bool:
    """By identity: environments and policies have no useful equality."""
    return len(these) == len(those) and all(a is b for a, b in zip(these, those))
