"""The execution plan of a training: which parts are compiled, and why the others are not."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from bridge.engine.acting import Actor
from bridge.engine.choices import is_slower_compiled, placement_of, placement_of_acting, require_engine
from bridge.engine.learner import Learner
from bridge.engine.user_code.overrides import impure_schedules, inner_environments, names_of_user_code, replaced_in_sb3
from bridge.errors import NotCompilable
from bridge.originals import has_own_methods
from bridge.replay import HerReplayBuffer
from bridge.replay.rows import why_not_on_device
from bridge.sb3 import Algorithm, OffPolicy, OnPolicy
from bridge.translate.action_noise import export_noise
from bridge.translate.policies.exported_network import keeps_changing
from bridge.translate.policies.off_policy import (
    acting_part,
    acting_tensors,
    export_actor,
    export_off_policy,
    learned_tensors,
    network_names,
)
from bridge.translate.policies.off_policy_networks import ExportedActor
from bridge.translate.policies.on_policy import export_policy, require_trainable
from bridge.translate.pytorch.vectors import Vector
from bridge.translate.user_modules.snapshot import Snapshot
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.vec_env.placement import Placement
from bridge.wrappers import WrappedEnv
from bridge.wrappers.vec_check_nan import CompiledCheckNan
from bridge.wrappers.vec_monitor import CompiledMonitor
from bridge.wrappers.vec_normalize import own_statistics
from jaxenvs.compilation import is_usable, require_usable
from jaxenvs.compilation.default_device import on, on_device_of
from jaxenvs.learn.learner_state import POLICY
from jaxenvs.learn.off_policy.store.hindsight import require_goals

Made = TypeVar("Made")

# Attributes of a replay buffer on which a compiled function depends. If one changes, the plan is made anew.
OF_BUFFERS = ("env", "her_ratio", "copy_info_dict", "handle_timeout_termination")


class Mode(enum.Enum):
    """Ways in which a model takes steps."""

    COMPILED = "compiled"
    ACTING = "acting compiled, environments stepped on the host"
    SB3 = "SB3's code"


@dataclasses.dataclass
class Plan:
    """Execution plan: how a model trains. `print(model.plan)` shows it.

    Attributes:
      mode: how it takes steps.
      network: the policy as JAX functions; None if it has no translation.
      params: of PPO and A2C, the parameters that it takes.
      actor: acts in one compiled function per step; None if SB3's code acts.
      wrapped_env: the environments and their wrappers, as one step function; None if they are stepped on the host.
      mesh: the devices over which `wrapped_env`, and what is learned from it, is divided; None if it is not.
      learner: what updates change; None if updates are SB3's.
      user_code: names of the user's code that training calls (neither bridge's nor SB3's).
      reasons: why not everything is compiled, a sentence each.
      impure: why schedules among the user's code are not known to be pure, by their names.
      placement: where compiled functions run, and why there.
    """

    mode: Mode = Mode.SB3
    network: Any = None
    params: Vector | None = None
    actor: Actor | None = None
    wrapped_env: WrappedEnv | None = None
    mesh: Mesh | None = None
    learner: Learner | None = None
    user_code: tuple[str, ...] = ()
    reasons: list[str] = dataclasses.field(default_factory=list)
    impure: dict[str, str] = dataclasses.field(default_factory=dict)
    placement: Placement = Placement()

    # What the plan was made for, to notice when that changes.
    _inputs: tuple[object, ...] = ()
    _snapshot: Snapshot | None = None
    _acting: Snapshot | None = None  # of the part of the policy that acts
    # Compiled functions. Finding one by the contents of a network takes a tenth of the time of an update.
    _compiled: dict[bool | str, Any] = dataclasses.field(default_factory=dict)

    @property
    def device(self) -> jax.Device | None:
        """The device where compiled functions run; None: JAX's default device."""
        return self.placement.device

    @on_device_of("self")
    def compiled(self, key: bool | str, make: Callable[[], Made]) -> Made:
        """Return what `make` makes, made once for each key."""
        made: Made = self._compiled.get(key) or make()
        self._compiled[key] = made
        return made

    @property
    def collects(self) -> bool:
        """True if collecting is compiled, including the environments."""
        return self.mode is Mode.COMPILED

    @property
    def updates(self) -> bool:
        """True if the update is compiled."""
        return self.learner is not None

    def __str__(self) -> str:
        lines = [
            f"collecting: {self.mode.value}",
            f"updating: {'compiled' if self.updates else Mode.SB3.value}",
        ]
        if self.mesh is not None and self.wrapped_env is not None:
            minibatch = " and an equal part of each minibatch" if self.updates else ""
            own = self.wrapped_env.base.num_envs // self.mesh.size
            lines.append(f"devices: {self.mesh.size}, each with {own} of the environments{minibatch}")
        if self.placement.reason:
            lines.append(self.placement.reason)
        lines += [f"not compiled: {reason}" for reason in self.reasons]
        if self.user_code:
            lines.append(f"custom code, called as SB3 calls it: {', '.join(self.user_code)}")
        lines += [f"{name}: {why}" for name, why in self.impure.items()]
        return "\n".join(lines)

    def acts_as_planned(self, policy: object) -> bool:
        """Return whether a policy computes what `actor` computes, whatever its weights are."""
        return policy is self._inputs[1] and self._acting is not None and self._acting.is_current(learns=False)

    def is_current(self, algorithm: Algorithm, env: VecEnv | None) -> bool:
        """Return whether a plan made now would be this one. User code may have changed anything in between."""
        is_orphaned = self.network is not None and not is_usable()  # after a fork
        if is_orphaned or self.placement != placement_of(algorithm, env, self.collects):
            return False
        inputs = _inputs_of(algorithm, env)
        # Compared by identity: environments and policies have no useful equality.
        if len(inputs) != len(self._inputs) or any(a is not b for a, b in zip(inputs, self._inputs)):
            return False
        if self.user_code != names_of_user_code(algorithm, env):
            return False
        if self._snapshot is not None and not self._snapshot.is_current():
            return False
        return self.learner is None or self.learner.is_current()


def make_plan(algorithm: Algorithm, env: VecEnv | None) -> Plan:
    """Make the plan of a model and its environments.

    Raises:
      NotCompilable: with engine "xla", if not everything can be compiled.
    """
    *_, inner = inner_environments(env)
    placement = placement_of(algorithm, env, type(inner) is JaxVecEnv)
    plan = _plan_on(placement, algorithm, env)
    if not plan.collects and (other := placement_of(algorithm, env, False)) != placement:
        plan = _plan_on(other, algorithm, env)
    if algorithm.engine == "xla" and (plan.reasons or plan.mode is not Mode.COMPILED):
        why = " ".join(plan.reasons) or f"A {type(env).__name__} steps its environments on the host, not in JAX."
        raise NotCompilable(f'engine="xla" cannot compile this model: {why} Pass engine="auto" to allow a fallback.')
    plan._inputs = _inputs_of(algorithm, env)
    return plan


def _plan_on(placement: Placement, algorithm: Algorithm, env: VecEnv | None) -> Plan:
    plan = Plan(user_code=names_of_user_code(algorithm, env), impure=impure_schedules(algorithm), placement=placement)
    if algorithm.engine == "torch":
        plan.reasons.append('The model has engine="torch".')
    elif in_sb3 := replaced_in_sb3(algorithm):
        plan.reasons.append(f"Methods of SB3's {type(algorithm).__name__} were replaced: {', '.join(in_sb3)}.")
    else:
        try:
            require_usable()  # after a fork JAX cannot run, while SB3's code still can
        except RuntimeError as error:
            plan.reasons.append(str(error))
            return plan
        with on(placement.device):
            (_plan_on_policy if isinstance(algorithm, OnPolicyAlgorithm) else _plan_off_policy)(plan, algorithm, env)
    return plan


def _plan_on_policy(plan: Plan, algorithm: Any, env: VecEnv | None) -> None:
    policy, buffer = algorithm.policy, algorithm.rollout_buffer
    if type(buffer) not in algorithm.ROLLOUT_BUFFERS:
        plan.reasons.append(f"The rollout buffer is a {type(buffer).__name__}; only SB3's own buffers are compiled.")
        return
    if has_own_methods(buffer):
        plan.reasons.append("A method of the rollout buffer object was replaced.")
        return
    plan._snapshot = plan._acting = Snapshot(policy)
    try:
        _require_faster(algorithm)
        plan._snapshot.require_pure()
        network, parameters = export_policy(policy), plan._snapshot.parameters
        plan.network, plan.params = network, Vector(parameters)
        require_trainable(policy, network)
        plan.learner = Learner({POLICY: parameters}, {}, {POLICY: policy.optimizer})
    except NotCompilable as reason:
        plan.reasons.append(str(reason))
    if plan.network is not None:
        plan.mode = Mode.ACTING
    _plan_environments(plan, algorithm, env, _require_rollouts)
    if plan.mode is Mode.ACTING:
        with on(placement_of_acting(algorithm.asked_device, policy, algorithm.n_envs).device):
            plan.actor = Actor(plan.network, plan._snapshot.parameters)


def _plan_off_policy(plan: Plan, algorithm: Any, env: VecEnv | None) -> None:
    policy = algorithm.policy
    plan._snapshot = Snapshot(policy)
    try:
        _require_faster(algorithm)
        plan._snapshot.require_pure()
        network: ExportedActor = export_actor(policy)
        with on(placement_of_acting(algorithm.asked_device, policy, algorithm.n_envs).device):
            plan.actor = Actor(network, acting_tensors(policy, network))
        plan._acting = Snapshot(policy, [acting_part(policy)])
        plan.mode = Mode.ACTING
        plan.network = export_off_policy(policy, network)
        for name in network_names(policy):  # SB3's `train` uses the networks of the model
            if getattr(algorithm, name, None) is not getattr(policy, name):
                raise NotCompilable(f"model.{name} and model.policy.{name} are different modules.")
        entropy = getattr(algorithm, "ent_coef_optimizer", None)
        plan.learner = Learner(*learned_tensors(policy, entropy and (algorithm.log_ent_coef, entropy)))
    except NotCompilable as reason:
        plan.reasons.append(str(reason))
        return
    _plan_environments(plan, algorithm, env, _require_training)


def _plan_environments(
    plan: Plan,
    algorithm: Any,
    env: VecEnv | None,
    require: Callable[[Any, tuple[str, ...], WrappedEnv], None],
) -> None:
    """Compile the environments too, if the policy is compiled, and unless `require` raises NotCompilable.

    No reason is added for environments on the host, because the mode already says so.
    """
    environments = list(inner_environments(env))
    if type(environments[-1]) is not JaxVecEnv:
        return
    try:
        for each in environments:
            if has_own_methods(each):
                raise NotCompilable(f"A method of the {type(each).__name__} object was replaced.")
        wrapped_env = WrappedEnv.of(env)
        if plan.mode is Mode.ACTING:
            require(algorithm, plan.user_code, wrapped_env)
            plan.mode, plan.wrapped_env, plan.mesh = Mode.COMPILED, wrapped_env, wrapped_env.base.mesh
    except NotCompilable as reason:
        plan.reasons.append(str(reason))


def _require_rollouts(algorithm: OnPolicy, user_code: tuple[str, ...], wrapped_env: WrappedEnv) -> None:
    """Refuse what a compiled function that steps and acts cannot do, by a NotCompilable."""
    if "_update_info_buffer" in user_code:
        raise NotCompilable("The model overrides _update_info_buffer, which SB3 calls after every step.")
    _require_divisible(algorithm, wrapped_env)
    if algorithm.MASKS and wrapped_env.base.has_untraceable_action_masks:
        raise NotCompilable("JAX cannot trace action_masks of the environments.")


def _require_training(algorithm: Any, user_code: tuple[str, ...], wrapped_env: WrappedEnv) -> None:
    """Refuse what a compiled function that steps, stores and updates cannot do, by a NotCompilable."""
    if unwrap_vec_normalize(algorithm.env) is not None:
        raise NotCompilable(
            "VecNormalize is not compiled for off-policy algorithms: batches are normalized on the host with the "
            "current statistics."
        )
    reason = why_not_on_device(algorithm.replay_buffer)
    if reason is not None:
        raise NotCompilable(reason)
    if user_code:
        raise NotCompilable(f"The model calls custom code, which needs SB3's training loop: {', '.join(user_code)}.")
    if algorithm.train_freq.unit is not TrainFrequencyUnit.STEP:
        raise NotCompilable("train_freq counts episodes, and the compiled loop counts steps: give train_freq in steps.")
    if algorithm.action_noise is not None:
        export_noise(algorithm.action_noise, algorithm.action_space.shape or ())
    if isinstance(algorithm.replay_buffer, HerReplayBuffer):
        _require_goals(algorithm, wrapped_env)
    _require_divisible(algorithm, wrapped_env)


def _require_goals(algorithm: OffPolicy, wrapped_env: WrappedEnv) -> None:
    """Refuse environments whose reward for an arbitrary goal a compiled function cannot compute."""
    if not {*wrapped_env.types} <= {CompiledMonitor, CompiledCheckNan}:
        raise NotCompilable(
            "With HerReplayBuffer, only VecMonitor and VecCheckNan are compiled: others may change goals."
        )
    if algorithm.replay_buffer.env is not algorithm.env:
        raise NotCompilable("HerReplayBuffer.env must be model.env, the environments that the model steps.")
    try:
        require_goals(wrapped_env.base.venv.first_env)
    except TypeError as error:
        raise NotCompilable(f"{str(error)[0].upper()}{str(error)[1:]}") from error


def _require_divisible(algorithm: Any, wrapped_env: WrappedEnv) -> None:
    """Refuse what cannot be divided over the devices of the environments, if there are several devices."""
    mesh = wrapped_env.base.mesh
    if mesh is None:
        return
    for each in wrapped_env.wrappers:
        if not each.divides:
            raise NotCompilable(f"{type(each.wrapper).__name__} does not support environments on several devices.")
    if isinstance(getattr(algorithm, "replay_buffer", None), HerReplayBuffer):
        raise NotCompilable("HerReplayBuffer does not support environments on several devices.")
    try:
        algorithm._settings_now().check_devices(mesh.size, wrapped_env.base.num_envs)
    except ValueError as error:
        raise NotCompilable(f"The devices cannot share the work equally: {error}") from error


def _require_faster(algorithm: Algorithm) -> None:
    if algorithm.engine == "auto" and is_slower_compiled(algorithm.policy):
        raise NotCompilable('On a CPU, PyTorch runs convolutions faster than XLA; engine="xla" compiles them anyway.')
    if algorithm.engine == "auto" and keeps_changing(algorithm.policy):
        raise NotCompilable("The policy reads Python values that keep changing; each change would recompile it.")


def _inputs_of(algorithm: Algorithm, env: VecEnv | None) -> tuple[object, ...]:
    policy = algorithm.policy
    networks = [each for name in network_names(policy) if (each := vars(algorithm).get(name)) is not None]
    owners = [policy, *networks]
    buffer = vars(algorithm).get("rollout_buffer", vars(algorithm).get("replay_buffer"))
    environments = [*inner_environments(env)]
    names = ["ent_coef_optimizer", "action_noise", "train_freq"]
    if getattr(environments[-1], "mesh", None) is not None:
        names += ["n_steps", "batch_size"]  # each device gets an equal part of these
    return (
        require_engine(algorithm.engine),
        policy,
        buffer,
        *networks,
        *(vars(each).get("optimizer") for each in owners),
        *(getattr(algorithm, name, None) for name in names),
        *(vars(buffer).get(name) for name in OF_BUFFERS if buffer is not None),
        *environments,
        *(has_own_methods(each) for each in (buffer, *environments) if each is not None),
        *(own_statistics(each) for each in environments if type(each) is VecNormalize),
    )
