"""A Stable-Baselines3 actor-critic policy as a pure JAX function of its parameters, and back."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from stable_baselines3.common import distributions
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn

from bridge.translate.encoding import Encoding, export_encoding
from bridge.translate.modules import (
    ExportedModule,
    export_module,
    require_no_forward_hooks,
    require_same_gradients,
)
from bridge.translate.operations import NotCompilable
from bridge.translate.tracing import first_line
from jaxenvs.learn.distributions import Distribution, StateDependentGaussian
from jaxenvs.learn.networks import ActionHead

__all__ = ["ExportedPolicy", "NotCompilable", "export_policy", "require_sb3s_predict", "require_trainable"]

# What of ActorCriticPolicy is translated, so that no class may have its own: for acting, and for training.
ACTING = (
    *("forward", "predict_values", "extract_features", "get_distribution", "_get_action_dist_from_latent"),
    *("reset_noise", "squash_output", "unscale_action", "obs_to_tensor"),
)
TRAINING = ("evaluate_actions",)
PREDICTION = ("predict", "_predict")
HEADS: dict[type[distributions.Distribution], str] = {
    distributions.CategoricalDistribution: "discrete",
    distributions.MultiCategoricalDistribution: "multi_discrete",
    distributions.BernoulliDistribution: "multi_binary",
    distributions.DiagGaussianDistribution: "box",
    distributions.StateDependentNoiseDistribution: "box",
}


@dataclasses.dataclass(frozen=True)
class Exploration:
    """The settings of state-dependent exploration, as those of StateDependentGaussian."""

    squash: bool
    expln: bool
    epsilon: float


@dataclasses.dataclass(frozen=True)
class ExportedPolicy:
    """A policy without its weights. Those of equal architecture are equal, and share compiled programs.

    Attributes:
      encoding: of observations; of a Dict space, for each key.
      module: with the parameters of `policy.named_parameters()`, from encoded observations to the actor's last hidden
        layer, the numbers for the head, and the value, (batch, 1).
      head: from numbers to a distribution over actions.
      exploration: None, or that it is state-dependent.
    """

    encoding: Encoding | tuple[tuple[str, Encoding], ...]
    module: ExportedModule
    head: ActionHead
    exploration: Exploration | None

    @property
    def num_parameters(self) -> int:
        """The length of the vector of parameters."""
        return self.module.num_parameters

    def unravel(self, vector: jax.Array) -> dict[str, jax.Array]:
        """All parameters by name, in PyTorch's layout, from one vector."""
        return self.module.unravel(vector)

    def apply(self, params: Any, observation: Any) -> tuple[Distribution, jax.Array]:
        """For a batch of observations, the distribution over actions and the values, (batch,).

        Args:
          params: by name, or as a vector. All is computed in their dtype.
          observation: as SB3's policies take it: images with their channels first; of a Discrete space, (batch,) or
            (batch, 1).
        """
        params = params if isinstance(params, dict) else self.unravel(params)
        dtype = next(iter(params.values())).dtype
        if isinstance(self.encoding, Encoding):
            encoded: Any = self.encoding(observation, dtype)
        else:
            encoded = {key: encoding(observation[key], dtype) for key, encoding in self.encoding}
        latent, numbers, value = self.module(params, encoded)
        value = jax.lax.squeeze(value, (1,))
        if self.exploration is None:
            return self.head.distribution(numbers, params.get("log_std")), value
        settings = dataclasses.asdict(self.exploration)
        return StateDependentGaussian(numbers, latent, params["log_std"], **settings), value

    def as_seen(self, observation: Any) -> Any:
        """Observations, of any leading axes, with the channels of images first, where SB3 puts them for a policy."""

        def see(encoding: Encoding, leaf: jax.Array) -> jax.Array:
            is_last = len(encoding.shape) == 3 and leaf.shape[-3:] != encoding.shape
            return jnp.moveaxis(leaf, -1, -3) if is_last else leaf

        if isinstance(self.encoding, Encoding):
            return see(self.encoding, observation)
        return {key: see(encoding, observation[key]) for key, encoding in self.encoding}

    def to_env(self, action: jax.Array) -> jax.Array:
        """A batch of samples as actions of the environments, in their dtype; those of a Box clipped or unscaled."""
        if self.exploration is None or not self.exploration.squash:
            return self.head.to_env(action)
        low, high = (jnp.asarray(bound, action.dtype) for bound in (self.head.low, self.head.high))
        unscaled = low + 0.5 * (action + 1) * (high - low)
        return unscaled.reshape(-1, *self.head.shape).astype(jax.dtypes.canonicalize_dtype(self.head.dtype))


def export_policy(policy: ActorCriticPolicy) -> ExportedPolicy:
    """A policy for acting and for values. `require_trainable` says whether an update may use it too.

    Raises:
      NotCompilable: the policy computes something that has no translation, or may do so.
    """
    _require_known(policy)
    encoding = export_encoding(policy.observation_space, policy.normalize_images)

    def example(encoding: Encoding) -> torch.Tensor:
        return torch.zeros((1, *encoding.encoded_shape), device=policy.device)

    encoded = example(encoding) if isinstance(encoding, Encoding) else {key: example(part) for key, part in encoding}
    module = export_module(_Networks(policy), encoded)
    network = ExportedPolicy(encoding, module, _head(policy), _exploration(policy))
    _require_sound(network, str(next(policy.parameters()).dtype).removeprefix("torch."))
    return network


def require_trainable(policy: ActorCriticPolicy, network: ExportedPolicy) -> None:
    """Refuse policies that act as their translation does, but would learn something else than it.

    Args:
      policy, network: the policy, and what `export_policy` made of it.

    Raises:
      NotCompilable: something would be different.
    """
    _require_sb3_methods(policy, TRAINING)
    require_same_gradients(policy, network.module, policy.optimizer, elsewhere={"log_std"})


def require_sb3s_predict(policy: ActorCriticPolicy) -> None:
    """Refuse policies that choose actions in `predict` in a way of their own.

    Raises:
      NotCompilable: so does this one.
    """
    _require_sb3_methods(policy, PREDICTION)


class _Networks(nn.Module):
    """What a policy computes, but for the encoding of observations and the distribution."""

    pi_features_extractor: nn.Module
    vf_features_extractor: nn.Module
    mlp_extractor: MlpExtractor
    action_net: nn.Module
    value_net: nn.Module

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        # Not as a submodule, so that parts and parameters have their names in the policy.
        self._modules, self._parameters, self._buffers = policy._modules, policy._parameters, policy._buffers
        self.share_features_extractor = policy.share_features_extractor

    def forward(self, x: Any) -> Any:
        pi_features = self.pi_features_extractor(x)
        vf_features = pi_features if self.share_features_extractor else self.vf_features_extractor(x)
        latent_pi = self.mlp_extractor.policy_net(pi_features)
        latent_vf = self.mlp_extractor.value_net(vf_features)
        return latent_pi, self.action_net(latent_pi), self.value_net(latent_vf)


def _require_known(policy: ActorCriticPolicy) -> None:
    """Refuse what tracing would not show."""
    if not isinstance(policy, ActorCriticPolicy):
        raise NotCompilable(f"The policy must be an ActorCriticPolicy, got a {type(policy).__name__}.")
    _require_sb3_methods(policy, ACTING)
    if type(policy.mlp_extractor) is not MlpExtractor:
        raise NotCompilable(f"mlp_extractor must be SB3's MlpExtractor, got a {type(policy.mlp_extractor).__name__}.")
    extractors = (policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor)
    if policy.share_features_extractor and len(set(extractors)) > 1:
        raise NotCompilable("The policy shares its features extractor, but has several of them.")
    require_no_forward_hooks(policy)


def _require_sb3_methods(policy: ActorCriticPolicy, names: tuple[str, ...]) -> None:
    cls = type(policy)
    for name in names:
        if getattr(cls, name) is not getattr(ActorCriticPolicy, name) or name in vars(policy):
            raise NotCompilable(f"{cls.__name__} has a method {name} of its own.")


@functools.lru_cache(maxsize=64)
def _require_sound(network: ExportedPolicy, dtype: str) -> None:
    """Refuse networks whose results are not what the distribution and a value take."""

    def actions_and_values(vector: Any, observation: Any) -> Any:
        distribution, value = network.apply(vector, observation)
        return distribution.mode(), value

    encoding = network.encoding if isinstance(network.encoding, Encoding) else dict(network.encoding)
    observation = jax.tree.map(lambda each: np.zeros((2, *each.shape), dtype), encoding)
    vector = np.zeros(network.num_parameters, dtype)
    try:
        action, value = jax.eval_shape(actions_and_values, vector, observation)
    except Exception as error:
        raise NotCompilable(f"The networks do not fit the distribution of actions: {first_line(error)}") from error
    if value.shape != (2,) or action.shape[0] != 2:
        raise NotCompilable(f"For two observations, the networks gave {action.shape} actions, {value.shape} values.")


def _head(policy: ActorCriticPolicy) -> ActionHead:
    try:
        head = ActionHead.of(policy.action_space)
    except ValueError as error:
        raise NotCompilable(str(error)) from error
    if HEADS.get(type(policy.action_dist)) != head.kind:
        kind = type(policy.action_dist).__name__
        raise NotCompilable(f"There is no translation to JAX of a {kind} over {policy.action_space}.")
    if head.start:
        raise NotCompilable(f"The actions of SB3's policies start at 0, but the action space is {policy.action_space}.")
    return head


def _exploration(policy: ActorCriticPolicy) -> Exploration | None:
    distribution = policy.action_dist
    if not isinstance(distribution, distributions.StateDependentNoiseDistribution):
        return None
    squash = distribution.bijector is not None
    if distribution.learn_features or squash != policy.squash_output:
        raise NotCompilable("The settings of state-dependent exploration must be SB3's, got others in action_dist.")
    return Exploration(squash, bool(distribution.use_expln), float(distribution.epsilon))
