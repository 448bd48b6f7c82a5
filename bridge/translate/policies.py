"""A Stable-Baselines3 actor-critic policy as a pure JAX function of its parameters, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import distributions
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn

from bridge.translate.modules import Program, first_line, trace
from bridge.translate.operations import NotCompilable
from jaxenvs.learn.distributions import Distribution, StateDependentGaussian
from jaxenvs.learn.networks import ActionHead

__all__ = ["ExportedPolicy", "NotCompilable", "export_policy", "read_parameters", "write_parameters"]

# What of ActorCriticPolicy is translated, so that no class may have its own.
TRANSLATED = (
    *("forward", "evaluate_actions", "predict_values", "extract_features", "get_distribution"),
    *("_get_action_dist_from_latent", "reset_noise", "squash_output", "unscale_action", "obs_to_tensor"),
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HEADS: dict[type[distributions.Distribution], str] = {
    distributions.CategoricalDistribution: "discrete",
    distributions.MultiCategoricalDistribution: "multi_discrete",
    distributions.BernoulliDistribution: "multi_binary",
    distributions.DiagGaussianDistribution: "box",
    distributions.StateDependentNoiseDistribution: "box",
}


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How observations of a space become numbers for networks: SB3's `preprocess_obs`.

    Attributes:
      shape: of an observation.
      nvec: of Discrete and MultiDiscrete, whose numbers become so many one-hot vectors, end to end.
      is_image: numbers are divided by 255.
    """

    shape: tuple[int, ...]
    nvec: tuple[int, ...] = ()
    is_image: bool = False

    def __call__(self, observation: jax.Array, dtype: Any) -> jax.Array:
        if self.nvec:
            numbers = observation.reshape(-1, len(self.nvec)).astype(jnp.int32)
            one_hot = [jax.nn.one_hot(numbers[:, i], n, dtype=dtype) for i, n in enumerate(self.nvec)]
            return jnp.concatenate(one_hot, axis=1)
        return observation.astype(dtype) / 255 if self.is_image else observation.astype(dtype)


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
      parameters: names and shapes, in the order of `policy.named_parameters()`.
      encoding: of observations; of a Dict space, for each key.
      program: from encoded observations to the actor's last hidden layer, the numbers for the head, and the value.
      head: from numbers to a distribution over actions.
      exploration: None, or that it is state-dependent.
      has_active_dropout: in training mode, PyTorch computes something else than this.
    """

    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    encoding: Encoding | tuple[tuple[str, Encoding], ...]
    program: Program
    head: ActionHead
    exploration: Exploration | None
    has_active_dropout: bool

    @property
    def num_parameters(self) -> int:
        """The length of the vector of parameters."""
        return sum(math.prod(shape) for _, shape in self.parameters)

    def unravel(self, vector: jax.Array) -> dict[str, jax.Array]:
        """All parameters by name, in PyTorch's layout, from one vector."""
        # split, because its gradient is one concatenation.
        parts = jax.lax.split(vector, [math.prod(shape) for _, shape in self.parameters])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.parameters, parts)}

    def apply(self, params: Any, observation: Any) -> tuple[Distribution, jax.Array]:
        """For a batch of observations, the distribution over actions and the values, (batch,).

        Args:
          params: by name, or as a vector. All is computed in their dtype.
          observation: as SB3's policies take it; of a Discrete space, (batch,) or (batch, 1); of an image, with its
            channels first or last.
        """
        observation = self.as_seen(observation)
        params = params if isinstance(params, dict) else self.unravel(params)
        dtype = next(iter(params.values())).dtype
        if isinstance(self.encoding, Encoding):
            encoded: Any = self.encoding(observation, dtype)
        else:
            encoded = {key: encoding(observation[key], dtype) for key, encoding in self.encoding}
        latent, numbers, value = self.program(params, encoded)
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
        """A batch of what the distribution gives as actions of the environments: those of a Box clipped or unscaled."""
        if self.exploration is None or not self.exploration.squash:
            return self.head.to_env(action)
        low, high = (jnp.asarray(bound, action.dtype) for bound in (self.head.low, self.head.high))
        return (low + 0.5 * (action + 1) * (high - low)).reshape(-1, *self.head.shape)


def export_policy(policy: ActorCriticPolicy) -> ExportedPolicy:
    """
    Raises:
      NotCompilable: the policy computes something that has no translation, or may do so.
    """
    _require_known(policy)
    names = {id(parameter): name for name, parameter in policy.named_parameters()}
    forward = _Forward(policy)
    with _training_mode(policy, False):
        program = trace(forward, names)
    with _training_mode(policy, True):
        training_program = trace(forward, names)
    network = ExportedPolicy(
        parameters=tuple((name, tuple(parameter.shape)) for name, parameter in policy.named_parameters()),
        encoding=_encodings(policy),
        program=program,
        head=_head(policy),
        exploration=_exploration(policy),
        has_active_dropout=program != training_program,
    )
    _require_sound(network, next(policy.parameters()).detach().cpu().numpy().dtype)
    return network


def read_parameters(policy: ActorCriticPolicy) -> np.ndarray:
    """All parameters of an exported policy end to end, in the order of `named_parameters`, in memory of their own."""
    with torch.no_grad():
        vector: np.ndarray = torch.cat([parameter.flatten() for parameter in _parameters(policy)]).cpu().numpy()
    return vector


def write_parameters(policy: ActorCriticPolicy, vector: np.ndarray) -> None:
    """Copy a vector, as `read_parameters` gives it, into the parameters.

    Raises:
      ValueError: it is not of their number. Nothing changed.
    """
    parameters = _parameters(policy)
    sizes = [parameter.numel() for parameter in parameters]
    if np.shape(vector) != (sum(sizes),):
        raise ValueError(f"The parameters must be a vector of {sum(sizes)} numbers, got the shape {np.shape(vector)}.")
    with torch.no_grad():
        # Copied first, because torch warns of arrays that are read-only, as JAX's are.
        for parameter, part in zip(parameters, torch.split(torch.from_numpy(np.array(vector)), sizes)):
            parameter.copy_(part.view_as(parameter))


def _parameters(policy: ActorCriticPolicy) -> list[nn.Parameter]:
    """Those of the policy, from where they are at hand: going through its modules takes as long as a small rollout."""
    return [parameter for group in policy.optimizer.param_groups for parameter in group["params"]]


class _Forward(nn.Module):
    """What the policy computes, but for the encoding of observations and the distribution."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, x: Any) -> Any:
        policy = self.policy
        if isinstance(policy.observation_space, spaces.Dict):
            x = {key: x[key] for key in policy.observation_space}
        pi_features = policy.pi_features_extractor(x)
        vf_features = pi_features if policy.share_features_extractor else policy.vf_features_extractor(x)
        latent_pi = policy.mlp_extractor.policy_net(pi_features)
        latent_vf = policy.mlp_extractor.value_net(vf_features)
        return latent_pi, policy.action_net(latent_pi), policy.value_net(latent_vf)


@contextlib.contextmanager
def _training_mode(policy: ActorCriticPolicy, mode: bool) -> Iterator[None]:
    before = [(module, module.training) for module in policy.modules()]
    policy.set_training_mode(mode)
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _require_known(policy: ActorCriticPolicy) -> None:
    """Refuse what tracing would not show."""
    cls = type(policy)
    if not isinstance(policy, ActorCriticPolicy):
        raise NotCompilable(f"The policy must be an ActorCriticPolicy, got a {cls.__name__}.")
    for name in TRANSLATED:
        if getattr(cls, name) is not getattr(ActorCriticPolicy, name) or name in vars(policy):
            raise NotCompilable(f"{cls.__name__} has a method {name} of its own.")
    if type(policy.mlp_extractor) is not MlpExtractor:
        raise NotCompilable(f"mlp_extractor must be SB3's MlpExtractor, got a {type(policy.mlp_extractor).__name__}.")
    extractors = (policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor)
    if policy.share_features_extractor and len(set(extractors)) > 1:
        raise NotCompilable("The policy shares its features extractor, but has several of them.")

    for path, module in policy.named_modules():
        if any(getattr(module, hooks) for hooks in HOOKS) or "forward" in vars(module):
            raise NotCompilable(f"{path or 'The policy'} ({type(module).__name__}) has hooks or a forward put into it.")
    parameters = dict(policy.named_parameters())
    for name, parameter in parameters.items():
        if not parameter.requires_grad or parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise NotCompilable(f"The parameter {name} is frozen or has hooks.")
    dtypes = sorted({str(parameter.dtype) for parameter in parameters.values()})
    widest = f"torch.{jax.dtypes.canonicalize_dtype(float)}"
    if dtypes not in (["torch.float32"], [widest]):
        raise NotCompilable(f"The parameters must be float32, or all float64 under jax_enable_x64, got {dtypes}.")
    trained = [parameter for group in policy.optimizer.param_groups for parameter in group["params"]]
    if list(map(id, trained)) != list(map(id, parameters.values())):
        raise NotCompilable("The optimizer must train all parameters of the policy, in their order.")


@functools.lru_cache(maxsize=64)
def _require_sound(network: ExportedPolicy, dtype: np.dtype[Any]) -> None:
    """Refuse what fails, or what some parameters have no part in: PyTorch's optimisers skip those."""
    read = network.program.parameter_names | {"log_std"}
    for name, _ in network.parameters:
        if name not in read:
            raise NotCompilable(f"The parameter {name} has no part in what the policy computes.")
    vector = np.zeros(network.num_parameters, dtype)
    observation = jax.tree.map(
        lambda encoding: np.zeros((2, *encoding.shape), dtype),
        network.encoding if isinstance(network.encoding, Encoding) else dict(network.encoding),
    )

    def numbers_and_value(vector: jax.Array, observation: Any) -> Any:
        distribution, value = network.apply(vector, observation)
        return distribution.mode(), value

    try:
        action, value = jax.eval_shape(numbers_and_value, vector, observation)
    except NotCompilable:
        raise
    except Exception as error:
        raise NotCompilable(f"The networks of the policy have no translation to JAX: {first_line(error)}") from error
    if value.shape != (2,) or action.shape[0] != 2:
        raise NotCompilable(f"For two observations, the networks gave {action.shape} actions, {value.shape} values.")


def _encodings(policy: ActorCriticPolicy) -> Encoding | tuple[tuple[str, Encoding], ...]:
    space = policy.observation_space
    if isinstance(space, spaces.Dict):
        return tuple((key, _encoding(part, policy.normalize_images)) for key, part in space.items())
    return _encoding(space, policy.normalize_images)


def _encoding(space: gymnasium.Space[Any], normalize_images: bool) -> Encoding:
    if isinstance(space, spaces.Box):
        return Encoding(space.shape, is_image=normalize_images and is_image_space(space))
    if isinstance(space, spaces.MultiBinary):
        return Encoding(space.shape)
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Encoding((), nvec=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not np.any(space.start):
        return Encoding(space.shape, nvec=tuple(space.nvec.tolist()))
    raise NotCompilable(f"There is no translation to JAX of observations of {space}.")


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
