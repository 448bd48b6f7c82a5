"""Base class of the settings of off-policy algorithms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
import optax

from jaxenvs import arguments
from jaxenvs.environment import static, struct
from jaxenvs.learn.devices import pmean, require_divisible
from jaxenvs.learn.interfaces import Arrays, Real
from jaxenvs.learn.learner_state import LearnerState, Optimizers
from jaxenvs.learn.off_policy.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from jaxenvs.learn.off_policy.policies import OffPolicyPolicy
from jaxenvs.learn.off_policy.store.hindsight import Hindsight
from jaxenvs.learn.off_policy.store.replay import TD_ERRORS, Transitions
from jaxenvs.learn.optimization import ravel
from jaxenvs.learn.settings import Settings
from jaxenvs.transformations import varying

# PyTorch's defaults, which SB3's off-policy algorithms use.
ADAM = optax.scale_by_adam()
Metrics = dict[str, jax.Array]
Count = TypeVar("Count", int, jax.Array)


@struct
class OffPolicySettings(Settings):
    """Base class of the settings of off-policy algorithms.

    Attributes:
      learning_rate: a float; or, for a Training, an array with one for each iteration; or, for an update, a dict with
        one for each network.
      buffer_size: of the replay store, in transitions of all environments together.
      learning_starts: until this many steps of all environments together, actions are random and nothing is learned.
      batch_size: of the minibatches.
      tau, gamma: the share of new parameters in each update of the targets; the discount.
      train_freq: steps of each environment between updates.
      gradient_steps: after them; -1: as many as steps of all environments together.
      n_steps: of the returns.
      action_noise: added to the actions of a Box, a NormalActionNoise or OrnsteinUhlenbeckActionNoise; or None.
      hindsight: a Hindsight, for environments with goals: whole episodes are sampled, most transitions with goals that
        were achieved in them; there are no updates before an episode has ended. Or None.
    """

    RANGES: ClassVar[dict[str, tuple[float, float]]] = Settings.RANGES | {"tau": (0, 1)}
    COUNTS: ClassVar[tuple[str, ...]] = ("buffer_size", "batch_size", "train_freq", "n_steps")
    OPTIMIZER: ClassVar[optax.GradientTransformation] = ADAM
    # The policy class that the algorithm trains, and the networks that have a target network.
    POLICY: ClassVar[type[OffPolicyPolicy]] = OffPolicyPolicy
    TARGETS: ClassVar[tuple[str, ...]] = ()
    # Names of running statistics, vectors that follow batches: a policy creates them among its parameters.
    STATISTICS: ClassVar[tuple[str, ...]] = ()
    # Names of metrics that only every `policy_delay`-th update has; each update reports by "actor_updates" if it has
    # them.
    DELAYED: ClassVar[tuple[str, ...]] = ()

    buffer_size: int = static(default=1_000_000)
    learning_starts: int = static(default=100)
    batch_size: int = static(default=256)
    tau: Real = 0.005
    train_freq: int = static(default=1)
    gradient_steps: int = static(default=1)
    n_steps: int = static(default=1)
    action_noise: NormalActionNoise | OrnsteinUhlenbeckActionNoise | None = None
    hindsight: Hindsight | None = None

    @property
    def steps_per_iteration(self) -> int:
        """Steps of each environment between updates."""
        return self.train_freq

    @property
    def random_warm_up(self) -> bool:
        """True if actions are random until learning starts."""
        return True

    def num_updates(self, num_envs: int) -> int:
        """Return the number of gradient steps after each collection."""
        return self.train_freq * num_envs if self.gradient_steps < 0 else self.gradient_steps

    def check(self) -> None:
        """Raise if a setting is invalid."""
        super().check()
        arguments.non_negative_int("learning_starts", self.learning_starts)
        arguments.integer("gradient_steps", self.gradient_steps, -1)
        if self.action_noise is not None:
            kinds = (NormalActionNoise, OrnsteinUhlenbeckActionNoise)
            expected = "None, a learn.NormalActionNoise or a learn.OrnsteinUhlenbeckActionNoise"
            arguments.instance("action_noise", self.action_noise, kinds, expected)
        if self.hindsight is not None:
            arguments.instance("hindsight", self.hindsight, Hindsight, "None or a learn.Hindsight")
            if self.n_steps != 1:
                raise ValueError(f"n_steps must be 1 with hindsight, got {self.n_steps}.")

    def check_devices(self, num_devices: int, num_envs: int) -> None:
        """Raise where several devices cannot share the environments and the minibatches equally."""
        super().check_devices(num_devices, num_envs)
        require_divisible("batch_size", self.batch_size, num_devices)

    def check_network(self, network: object) -> None:
        """Raise unless the network is of this algorithm's policy class, or a class outside this package that fits."""
        is_ours = type(network).__module__.startswith(__package__)
        is_other = is_ours and not isinstance(network, self.POLICY)
        if is_other or not all(hasattr(network, name) for name in (*self.NETWORKS, "head", "to_env", "polyak")):
            got = type(network).__name__
            raise TypeError(f"network must be a learn.{self.POLICY.__name__} for {type(self).__name__}, got a {got}.")

    def create(self, params: Mapping[str, Any], optimizers: Optimizers) -> LearnerState:
        """Return the state before the first update. Running statistics may be among the parameters."""
        targets = {f"{name}_target": jax.tree.map(jnp.copy, params[name]) for name in self.TARGETS}
        statistics = {name: params[name] for name in self.STATISTICS if name in params}
        params = {name: params[name] for name in params if name not in statistics}
        return LearnerState.create(params, optimizers, targets | statistics)

    def acting_params(self, state: LearnerState) -> dict[str, Any]:
        """Return the params of `explore` and of the noise: parameters and running statistics, by name."""
        return state.params | {name: state.targets[name] for name in self.STATISTICS if name in state.targets}

    def noise(
        self, policy: OffPolicyPolicy, params: Mapping[str, Any], batch: Transitions, key: jax.Array, num: int
    ) -> Any:
        """Draw the noise of `num` updates at once: a pytree with the leading axis `num`, or None.

        Args:
          batch: a minibatch, of which only shapes and dtypes are used.
        """
        return None

    def update(
        self,
        policy: OffPolicyPolicy,
        optimizers: Optimizers,
        state: LearnerState,
        batch: Transitions,
        noise: Any = None,
        gradient_step: int | jax.Array = 0,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Take one gradient step of each network. A pure function of the settings and its arguments.

        Args:
          policy: the networks.
          optimizers: by the names of `state.params`; without a learning rate, on vectors.
          state: the parameters, the states of their optimizers, and the targets.
          batch: Transitions to learn from.
          noise: of one update, as `noise` draws it.
          gradient_step: its number among the gradient steps after one collection, which SB3's SAC uses.

        Returns:
          The next state, and metrics with SB3's names and meanings. If the batch has weights, "td_errors" is one of
          them, (batch,): each value's distance from its target before the step, the mean over the critics.
        """
        policy, state, back = on_vectors(policy, state)
        state, metrics = self._update(policy, optimizers, state, batch, noise, jnp.asarray(gradient_step))
        return back(state), self._means(metrics, jnp.ones((), jnp.int32))

    def updates(
        self,
        policy: OffPolicyPolicy,
        optimizers: Optimizers,
        state: LearnerState,
        batches: Any,
        noise: Any = None,
        batch_of: Callable[[Any], Transitions] | None = None,
        num: int | jax.Array | None = None,
        first: Any = 0,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Take gradient steps one after the other: `update` in a loop, whose parameters and moments are vectors.

        Args:
          batches: Transitions with one more leading axis; or any pytree with such an axis, from each element of which
            `batch_of` makes a batch. Made in the loop, one at a time, batches stay in the caches.
          noise: with the same axis, as `noise` draws it.
          num: how many steps to take; may be traced. If not given, all.
          first: the number of the first one among the gradient steps after one collection; may be traced.

        Returns:
          The next state, and the means of the metrics, which are 0 where there is nothing to average. If the batches
          have weights, "td_errors" is among them as in `update`, with the leading axis of the batches.
        """
        policy, state, back = on_vectors(policy, state)
        most = jax.tree.leaves(batches)[0].shape[0]

        def step(state: LearnerState, gradient_step: jax.Array) -> tuple[LearnerState, Metrics, Metrics]:
            """Return the state, the metrics that are summed up, and those of each transition."""
            element, drawn = jax.tree.map(lambda leaf: leaf[gradient_step], (batches, noise))
            batch = element if batch_of is None else batch_of(element)
            state, metrics = self._update(policy, optimizers, state, batch, drawn, first + gradient_step)
            return state, metrics, _take_errors(metrics)

        def add(gradient_step: jax.Array, carry: tuple[LearnerState, Metrics, Metrics]) -> Any:
            state, metrics, errors = step(carry[0], gradient_step)
            errors = jax.tree.map(lambda all_of, one: all_of.at[gradient_step].set(one), carry[2], errors)
            return state, jax.tree.map(jnp.add, carry[1], metrics), errors

        if num is None and most == 1:  # in a loop, XLA would copy the parameters and moments first
            state, sums, errors = step(state, jnp.zeros((), jnp.int32))
            errors = jax.tree.map(lambda leaf: leaf[None], errors)
            return back(state), self._means(sums | errors, jnp.ones((), jnp.int32))
        count = jnp.asarray(most if num is None else num, jnp.int32)
        _, *shapes = jax.eval_shape(step, state, jnp.zeros((), jnp.int32))
        sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[0])
        errors = jax.tree.map(lambda leaf: jnp.zeros((most, *leaf.shape), leaf.dtype), shapes[1])
        carry = varying((state, sums, errors), state, batches, noise)
        state, sums, errors = jax.lax.fori_loop(0, count, add, carry)
        return back(state), self._means(sums | errors, count)

    def num_averaged(self, metric: str, before: Count, after: Count) -> Count:
        """Return how many updates a metric averages, where `num_updates` went from `before` to `after`."""
        if metric not in self.DELAYED:
            return after - before
        delay: int = getattr(self, "policy_delay", 1)
        return after // delay - before // delay

    def on_step(
        self, policy: OffPolicyPolicy, state: LearnerState, before: jax.Array, after: jax.Array, num_envs: int
    ) -> LearnerState:
        """Update what follows steps of the environments rather than updates, such as the target network of DQN.

        Args:
          before, after: how many steps each environment had taken before, and has now.
        """
        return state

    def with_exploration_rate(self, rate: jax.Array) -> Self:
        """Return the settings with a constant share of random actions; unchanged, if they have no such share."""
        return self

    def exploration_noise(
        self, policy: OffPolicyPolicy, params: Any, observation: Arrays, key: jax.Array, num: int
    ) -> Any:
        """Draw the noise of `explore` in `num` steps of all environments: a pytree with leading axis `num`, or None."""
        return None

    def explore(
        self,
        policy: OffPolicyPolicy,
        params: Any,
        observation: Arrays,
        noise: Any,
        random: jax.Array,
        progress: Real,
    ) -> jax.Array:
        """Return the actions to take, without action noise, as the store holds them.

        Args:
          noise: of one step, as `exploration_noise` draws it.
          random: an action drawn uniformly for each environment.
          progress: the share of the training that is done.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define explore.")

    def _update(
        self,
        policy: OffPolicyPolicy,
        optimizers: Optimizers,
        state: LearnerState,
        batch: Transitions,
        noise: Any,
        gradient_step: jax.Array,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Compute `update` with one vector of parameters per network. Metrics are summed up, and passed to `_means`."""
        raise NotImplementedError(f"{type(self).__name__} does not define an update.")

    def _means(self, sums: dict[str, jax.Array], count: jax.Array) -> dict[str, jax.Array]:
        errors, delayed = _take_errors(sums), sums.pop("actor_updates", count)
        means = {
            name: total / jnp.maximum(delayed if name in self.DELAYED else count, 1) for name, total in sums.items()
        }
        return pmean(means, self.axis_name) | errors


def _take_errors(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Remove per-transition entries from the metrics, and return them."""
    return {name: metrics.pop(name) for name in (TD_ERRORS,) if name in metrics}


class _OnVectors(OffPolicyPolicy):
    """Policy whose parameters are vectors, which it unravels itself."""

    def __init__(self, policy: OffPolicyPolicy, unravel: Mapping[str, Callable[[jax.Array], Any]]) -> None:
        def apply(name: str) -> Callable[..., Any]:
            return lambda vector, *inputs: getattr(policy, name).apply(unravel[name](vector), *inputs)

        for name in unravel:
            if hasattr(policy, name):
                setattr(self, name, SimpleNamespace(apply=apply(name)))
        for name in ("head", "to_env", "critic_params", "critic_target_params", "polyak"):
            setattr(self, name, getattr(policy, name))


def on_vectors(
    policy: OffPolicyPolicy, state: LearnerState
) -> tuple[OffPolicyPolicy, LearnerState, Callable[[LearnerState], LearnerState]]:
    """Return a policy and a state with each network as `ravel` has it, and the inverse; unchanged if they have."""
    trees = state.params | state.targets
    if all(isinstance(tree, tuple) or (isinstance(tree, jax.Array) and tree.ndim == 1) for tree in trees.values()):
        return policy, state, lambda state: state
    ravelled = {name: ravel(tree) for name, tree in trees.items()}
    unravel = {name: way_back for name, (_, way_back) in ravelled.items()}

    def change(state: LearnerState, change_one: Callable[[str, Any], Any]) -> LearnerState:
        params, targets = (
            {name: change_one(name, tree) for name, tree in trees.items()} for trees in (state.params, state.targets)
        )
        return dataclasses.replace(state, params=params, targets=targets)

    as_vectors = change(state, lambda name, _: ravelled[name][0])
    return _OnVectors(policy, unravel), as_vectors, lambda state: change(state, lambda name, v: unravel[name](v))
