"""CrossQ (Bhatt et al. 2024, https://openreview.net/forum?id=PczQtTsTIX), as in sb3-contrib."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import optax

from jaxenvs.environment import Environment, static, struct
from jaxenvs.learn.interfaces import Arrays, Real
from jaxenvs.learn.learner_state import LearnerState, Optimizers
from jaxenvs.learn.networks.actor_critic import Activation, linear
from jaxenvs.learn.networks.distributions import SquashedGaussian
from jaxenvs.learn.off_policy.contrib.batch_renorm import BatchStatistics, renormalize
from jaxenvs.learn.off_policy.policies import (
    ActorCriticPolicy,
    ContinuousCritic,
    OffPolicyPolicy,
    Params,
    Perceptron,
    SACPolicy,
    SquashedActor,
)
from jaxenvs.learn.off_policy.policies import init_linear as new_linear
from jaxenvs.learn.off_policy.sac import SAC
from jaxenvs.learn.off_policy.store.replay import Transitions
from jaxenvs.learn.optimization import split

# Learned parameters of a renormalization, and its bounds `rmax` and `dmax`.
LEARNED, BOUNDS = ("scale", "bias"), (3.0, 5.0)


@dataclasses.dataclass(frozen=True)
class RenormPerceptron:
    """Linear layers with activations between them, each after a batch renormalization.

    Attributes:
      name: prefix of the numbers of the layers.
      sizes: inputs, hidden layers, outputs; if `is_hidden`, no outputs, and the last layer is renormalized too.
      activation: after each hidden layer.
      momentum, eps, warmup_steps: arguments of `renormalize`.
    """

    name: str
    sizes: tuple[int, ...]
    activation: Activation
    is_hidden: bool = False
    momentum: float = 0.01
    eps: float = 0.001
    warmup_steps: int = 100_000

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the renormalized features, layer by layer."""
        return self.sizes if self.is_hidden and len(self.sizes) > 1 else self.sizes[:-1]

    def init(self, key: jax.Array) -> Params:
        """Draw parameters with PyTorch's default; scales are 1 and biases of renormalizations 0."""
        params: Params = {}
        num_layers = len(self.sizes) - 1
        for index, layer_key in enumerate(jax.random.split(key, max(num_layers, 1))[:num_layers]):
            params |= new_linear(layer_key, f"{self.name}.{3 * index + 1}", *self.sizes[index : index + 2])
        for index, width in enumerate(self.widths):
            params |= {f"{self.name}.{3 * index}.{part}": jnp.full(width, float(part == "scale")) for part in LEARNED}
        return params

    def statistics(self) -> jax.Array:
        """Return running means, 0, and variances, 1, of all layers before the first batch, concatenated."""
        parts = [part for width in self.widths for part in (jnp.zeros(width), jnp.ones(width))]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    def apply(self, params: Params, x: jax.Array, statistics: jax.Array, batches: BatchStatistics | None) -> jax.Array:
        """Apply the layers.

        Args:
          x: (batch, sizes[0]).
          batches: renormalization in training; None: renormalize by the running statistics.
        """
        normalize = renormalize if batches is None else batches.renormalize
        parts = iter(split(statistics, tuple(width for width in self.widths for _ in range(2))))
        for index in range(max(len(self.sizes) - 1, len(self.widths))):
            if index < len(self.widths):
                scale, bias = (params[f"{self.name}.{3 * index}.{part}"] for part in LEARNED)
                running = next(parts), next(parts)
                x = normalize(x, *running, scale, bias, self.momentum, self.eps, self.warmup_steps, *BOUNDS)
            if index < len(self.sizes) - 1:
                x = linear(params, f"{self.name}.{3 * index + 1}", x)
                x = self.activation(x) if index < len(self.sizes) - 2 or self.is_hidden else x
        return x


@dataclasses.dataclass(frozen=True)
class CrossQActor(SquashedActor):
    """SAC's actor, built on a RenormPerceptron."""

    latent_pi: RenormPerceptron  # type: ignore[assignment]

    def apply(  # type: ignore[override]
        self, params: Params, observation: Arrays, statistics: jax.Array, batches: BatchStatistics | None = None
    ) -> SquashedGaussian:
        features = self.extractor(observation, params["mu.bias"].dtype)
        return self.distribution(params, self.latent_pi.apply(params, features, statistics, batches))


@dataclasses.dataclass(frozen=True)
class CrossQCritic(ContinuousCritic):
    """ContinuousCritic, built on RenormPerceptrons."""

    q_networks: tuple[RenormPerceptron, ...]  # type: ignore[assignment]

    def apply(  # type: ignore[override]
        self,
        params: Params,
        observation: Arrays,
        action: jax.Array,
        statistics: jax.Array,
        batches: BatchStatistics | None = None,
    ) -> jax.Array:
        features = self.extractor(observation, next(iter(params.values())).dtype)
        x = jnp.concatenate([features, action.reshape(len(action), -1).astype(features.dtype)], axis=1)
        parts = split(statistics, tuple(2 * sum(network.widths) for network in self.q_networks))
        values = [network.apply(params, x, part, batches) for network, part in zip(self.q_networks, parts)]
        return jnp.stack([value[:, 0] for value in values])


class CrossQPolicy(ActorCriticPolicy):
    """SAC's actor and critics, with batch renormalization."""

    @classmethod
    def of(
        cls,
        env: Environment[Any],
        net_arch: tuple[int, ...] | Mapping[str, tuple[int, ...]] | None = None,
        activation: Activation = jax.nn.relu,
        n_critics: int = 2,
        **numbers: Any,
    ) -> Self:
        """Return the networks for the spaces of an environment, with the arguments of SACPolicy.of and further ones.

        Args:
          net_arch: if not given, 256-256 for the actor and 1024-1024 for the critics.
          numbers: `momentum`, `eps` and `warmup_steps` of RenormPerceptron.
        """
        if net_arch is None:
            net_arch = {"pi": (256, 256), "qf": (1024, 1024)}
        like = SACPolicy.of(env, net_arch, activation, n_critics)

        def renormalized(network: Perceptron) -> RenormPerceptron:
            return RenormPerceptron(network.name, network.sizes, activation, network.is_hidden, **numbers)

        actor = CrossQActor(like.actor.extractor, renormalized(like.actor.latent_pi), like.actor.size)
        critic = CrossQCritic(like.critic.extractor, tuple(map(renormalized, like.critic.q_networks)))
        return cls(actor, critic, like.head)

    def init(self, key: jax.Array) -> dict[str, Any]:
        networks = {"actor": [self.actor.latent_pi], "critic": self.critic.q_networks}
        params = super().init(key)
        for name, parts in networks.items():
            params[f"{name}_statistics"] = jnp.concatenate([part.statistics() for part in parts])
            params[f"{name}_steps"] = jnp.zeros(sum(len(part.widths) for part in parts), jnp.int32)
        return params


@struct
class CrossQ(SAC):
    """CrossQ, off-policy learning without target networks (Bhatt et al. 2024, https://arxiv.org/abs/1902.05605).

    Use it for actions of a Box where samples are scarce: batch renormalization replaces target networks. Its settings
    are SAC's, except that `tau` and `target_update_interval` have no effect, and:

    Attributes:
      policy_delay: gradient steps of the critics for one of the actor and of the entropy coefficient.
    """

    COUNTS: ClassVar[tuple[str, ...]] = (*SAC.COUNTS, "policy_delay")
    POLICY: ClassVar[type[OffPolicyPolicy]] = CrossQPolicy
    TARGETS: ClassVar[tuple[str, ...]] = ()
    DELAYED: ClassVar[tuple[str, ...]] = ("actor_loss", "ent_coef_loss")
    STATISTICS: ClassVar[tuple[str, ...]] = tuple(
        f"{name}_{part}" for name in ("actor", "critic") for part in ("statistics", "steps")
    )

    learning_rate: Real | dict[str, Real] = 1e-3
    policy_delay: int = static(default=3)

    def optimizers(self, optimizer: optax.GradientTransformation | None = None) -> Optimizers:
        """Return SAC's optimizers; by default, Adam with the first beta of the paper's implementation, 0.5."""
        return super().optimizers(optax.scale_by_adam(b1=0.5) if optimizer is None else optimizer)

    def _distribution(self, policy: OffPolicyPolicy, params: Any, observation: Arrays) -> Any:
        return policy.actor.apply(params["actor"], observation, _of(params, "actor_statistics"))

    def _update(
        self,
        policy: OffPolicyPolicy,
        optimizers: Optimizers,
        state: LearnerState,
        batch: Transitions,
        noise: Any,
        gradient_step: jax.Array,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        noise, next_noise = noise
        before, size = state.targets, batch.reward.shape[0]
        distribution = self._distribution(policy, self.acting_params(state), batch.next_observation)
        next_action, next_log_prob = distribution.sample_and_log_prob(next_noise)
        ent_coef = jnp.asarray(self.ent_coef, next_log_prob.dtype)
        if self.auto_ent_coef:
            ent_coef = jnp.exp(state.params["log_ent_coef"][0])

        # The critics evaluate both steps at once, because they normalize by the joint batch.
        observations = jax.tree.map(lambda *both: jnp.concatenate(both), batch.observation, batch.next_observation)
        actions = jnp.concatenate([batch.action.reshape(size, -1).astype(next_action.dtype), next_action])

        def critic_loss_of(params: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            full, batches = (
                policy.critic_params(state.params | {"critic": params}),
                BatchStatistics(_of(before, "critic_steps"), self.axis_name),
            )
            values = policy.critic.apply(full, observations, actions, _of(before, "critic_statistics"), batches)
            next_value = jax.lax.stop_gradient(values[:, size:]).min(0)
            target = batch.reward + batch.discount * (next_value - ent_coef * next_log_prob)
            loss, error = self._critic_loss(values[:, :size], target, batch)
            return loss, (error, batches.new)

        critic_gradient_of = jax.value_and_grad(critic_loss_of, has_aux=True)
        (critic_loss, (error, statistics)), gradient = critic_gradient_of(state.params["critic"])
        state = self._apply_gradients(optimizers, state, "critic", gradient)
        state = _follow(state, "critic", statistics)
        state = dataclasses.replace(state, num_updates=state.num_updates + 1)

        def improve(state: LearnerState) -> tuple[LearnerState, dict[str, jax.Array]]:
            full = policy.critic_params(state.params)

            def actor_loss_of(params: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
                batches = BatchStatistics(_of(before, "actor_steps"), self.axis_name)
                distribution = policy.actor.apply(params, batch.observation, _of(before, "actor_statistics"), batches)
                action, log_prob = distribution.sample_and_log_prob(noise)
                values = policy.critic.apply(full, batch.observation, action, _of(state.targets, "critic_statistics"))
                return jnp.mean(ent_coef * log_prob - self._value(values)), (log_prob, batches.new)

            actor_gradient_of = jax.value_and_grad(actor_loss_of, has_aux=True)
            (actor_loss, (log_prob, statistics)), gradient = actor_gradient_of(state.params["actor"])
            metrics = {"actor_loss": actor_loss}
            if self.auto_ent_coef:
                metrics["ent_coef_loss"], state = self._update_entropy(
                    optimizers, state, log_prob, next_action.shape[1]
                )
            state = self._apply_gradients(optimizers, state, "actor", gradient)
            return _follow(state, "actor", statistics), metrics

        is_due = state.num_updates % self.policy_delay == 0
        none = {name: jnp.zeros_like(critic_loss) for name in self.DELAYED[: 1 + self.auto_ent_coef]}
        state, metrics = jax.lax.cond(is_due, improve, lambda state: (state, none), state)
        metrics |= {"critic_loss": critic_loss, "ent_coef": ent_coef, "actor_updates": is_due.astype(critic_loss.dtype)}
        return state, metrics | batch.errors(error)


def _of(statistics: Mapping[str, jax.Array], name: str) -> jax.Array:
    """Return one of the vectors of statistics; networks without batch renormalization have none."""
    return statistics.get(name, jnp.zeros(0))


def _follow(state: LearnerState, name: str, statistics: jax.Array) -> LearnerState:
    """Return the state with the running statistics of a network after a batch."""
    if f"{name}_steps" not in state.targets:
        return state
    seen = {f"{name}_statistics": statistics, f"{name}_steps": state.targets[f"{name}_steps"] + 1}
    return dataclasses.replace(state, targets=state.targets | seen)
