"""The plan of an off-policy training: what of it is compiled, and why the rest is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.vec_env import unwrap_vec_normalize

from bridge.engine.acting import Actor
from bridge.engine.on_policy.plan import compiles, is_slower_compiled, require_engine
from bridge.errors import NotCompilable
from bridge.replay.store.replay_buffer import why_not_lent
from bridge.translate.action_noise import export_noise
from bridge.translate.learning_state import LearningState
from bridge.translate.off_policy import acting_part, export_actor, export_off_policy, learning_state
from bridge.translate.off_policy_networks import ExportedOffPolicy
from bridge.translate.optimizers import ExportedOptimizer, export_optimizer
from bridge.translate.snapshot import Snapshot
from bridge.wrappers import Chain


@dataclasses.dataclass
class OffPolicyPlan:
    """How a model trains: `print(model.plan)`.

    Attributes:
      policy: its networks as programs; None if they have no translation or are not trained by one.
      learning: where PyTorch has what updates change; None if they are SB3's.
      torch_optimizers, optimizers: by the names of parameters, PyTorch's and what they do.
      actor: what the policy acts with, as one program a step; None if that is SB3's.
      chain: the environments and the wrappers around them, if stepping them, storing and updating are one program.
      reasons: why not everything is compiled, a sentence each.
    """

    policy: ExportedOffPolicy | None = None
    learning: LearningState | None = None
    torch_optimizers: dict[str, torch.optim.Optimizer] = dataclasses.field(default_factory=dict)
    optimizers: dict[str, ExportedOptimizer] = dataclasses.field(default_factory=dict)
    actor: Actor | None = None
    chain: Chain | None = None
    reasons: list[str] = dataclasses.field(default_factory=list)

    # What it was made for, to notice when that changes.
    _inputs: tuple[Any, ...] = ()
    _snapshot: Snapshot | None = None

    def __str__(self) -> str:
        if self.chain is not None:
            return "\n".join(["collecting, storing and updating: compiled, in one program", *self._reasons()])
        acting = "acting compiled, the environments on the host" if self.actor is not None else "SB3's code"
        updating = "compiled" if self.learning is not None else "SB3's code"
        return "\n".join([f"collecting: {acting}", f"updating: {updating}", *self._reasons()])

    def _reasons(self) -> list[str]:
        return [f"not compiled: {reason}" for reason in self.reasons]

    def acts_as_planned(self) -> bool:
        """Whether the policy still computes what the actor does, whatever its weights are."""
        return self._snapshot is not None and self._snapshot.is_current(learns=False)

    def is_current(self, algorithm: OffPolicyAlgorithm) -> bool:
        """Whether a plan made now would be this one: callbacks may have changed anything in between."""
        inputs = _inputs_of(algorithm)
        if len(inputs) != len(self._inputs) or any(a is not b for a, b in zip(inputs, self._inputs)):
            return False
        if self._snapshot is not None and not self._snapshot.is_current():
            return False
        try:
            return all(export_optimizer(each) == self.optimizers[name] for name, each in self.torch_optimizers.items())
        except NotCompilable:
            return False


def make_off_policy_plan(algorithm: Any) -> OffPolicyPlan:
    """
    Raises:
      NotCompilable: with engine "xla", if not everything can be compiled.
    """
    plan = _plan(algorithm)
    if algorithm.engine == "xla" and plan.reasons:
        raise NotCompilable(f'engine="xla" cannot compile this model: {" ".join(plan.reasons)}')
    plan._inputs = _inputs_of(algorithm)
    return plan


def optimizers_of(algorithm: Any) -> dict[str, torch.optim.Optimizer]:
    """PyTorch's optimisers, by the names of what they train."""
    if hasattr(algorithm.policy, "q_net"):
        return {"q_net": algorithm.policy.optimizer}
    optimizers = {"actor": algorithm.actor.optimizer, "critic": algorithm.critic.optimizer}
    entropy = getattr(algorithm, "ent_coef_optimizer", None)
    return optimizers if entropy is None else optimizers | {"log_ent_coef": entropy}


def _inputs_of(algorithm: Any) -> tuple[Any, ...]:
    return (
        require_engine(algorithm.engine),
        algorithm.policy,
        algorithm.env,
        algorithm.replay_buffer,
        algorithm.action_noise,
        algorithm.train_freq,
        *optimizers_of(algorithm).values(),
    )


def _plan(algorithm: Any) -> OffPolicyPlan:
    plan, policy = OffPolicyPlan(), algorithm.policy
    if algorithm.engine == "torch":
        plan.reasons.append('The engine is "torch".')
        return plan
    if not compiles(plan.reasons):
        return plan
    plan._snapshot = Snapshot(policy)
    try:
        if algorithm.engine == "auto" and is_slower_compiled(policy):
            raise NotCompilable("On a CPU, PyTorch runs convolutions faster than XLA.")
        actor = export_actor(policy)
        plan.actor = Actor(actor, list(acting_part(policy).parameters()))
        plan.policy = export_off_policy(policy)
        entropy = getattr(algorithm, "ent_coef_optimizer", None)
        learning = learning_state(policy, None if entropy is None else (algorithm.log_ent_coef, entropy))
        learning.read()  # which may hold what has no translation
        plan.torch_optimizers = optimizers_of(algorithm)
        plan.optimizers = {name: export_optimizer(each) for name, each in plan.torch_optimizers.items()}
        plan.learning = learning
    except NotCompilable as reason:
        plan.reasons.append(str(reason))
        return plan
    try:
        _require_in_program(algorithm)
        plan.chain = Chain.of(algorithm.env)
    except NotCompilable as reason:
        plan.reasons.append(str(reason))
    return plan


def _require_in_program(algorithm: Any) -> None:
    """Refuse what a program that steps, stores and updates does not do, and SB3's loop does.

    Raises:
      NotCompilable: there is something.
    """
    if algorithm.env is None:
        raise NotCompilable("There are no environments.")
    if unwrap_vec_normalize(algorithm.env) is not None:
        raise NotCompilable("With a VecNormalize, samples are normalised by the statistics of now, on the host.")
    reason = why_not_lent(algorithm.replay_buffer)
    if reason is not None:
        raise NotCompilable(reason)
    if algorithm.train_freq.unit is not TrainFrequencyUnit.STEP:
        raise NotCompilable("train_freq is in episodes, and a program counts steps.")
    if algorithm.action_noise is not None:
        export_noise(algorithm.action_noise, algorithm.action_space.shape or ())
