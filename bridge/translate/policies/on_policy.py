"""Translation of a Stable-Baselines3 actor-critic policy to a pure JAX function of its parameters."""

from __future__ import annotations

import functools
from typing import Any

import jax
import torch
from stable_baselines3.common import distributions
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn

from bridge.contrib import (
    MASKABLE_POLICY,
    RECURRENT_POLICY,
    contrib_class,
    is_maskable,
    is_recurrent,
    maskable_recurrent_policy,
)
from bridge.errors import NotCompilable
from bridge.stock.pytorch_pqn import Largest, PQNPolicy, QExtractor
from bridge.translate.policies.exported_network import (
    Encoded,
    Exploration,
    ModuleView,
    export_exploration,
    export_head,
    export_view,
    require_methods,
    shapes_given,
)
from bridge.translate.policies.exported_policy import ExportedPolicy, ExportedPQNPolicy, ExportedRecurrentPolicy
from bridge.translate.pytorch.modules import Params, export_module, require_no_forward_hooks, require_same_gradients
from jaxenvs.learn.interfaces import Observation
from jaxenvs.learn.networks.actor_critic import ActionHead

# Methods of ActorCriticPolicy that are translated by hand, for acting and for training. A class that overrides one has
# no translation.
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


def export_policy(policy: ActorCriticPolicy) -> ExportedPolicy:
    """Translate a policy for acting and for values. `require_trainable` checks whether an update may use it too."""
    _require_known(policy)
    head, exploration = _head(policy), _exploration(policy)
    if is_recurrent(policy):
        return _export_recurrent(policy, head, exploration)
    is_pqn = isinstance(policy, PQNPolicy)
    encoding, module = export_view(policy, _values if is_pqn else _networks)
    network = (ExportedPQNPolicy if is_pqn else ExportedPolicy)(encoding, module, head, exploration)
    _require_shapes(network, next(policy.parameters()).dtype)
    return network


def _export_recurrent(policy: Any, head: ActionHead, exploration: Exploration | None) -> ExportedRecurrentPolicy:
    """Translate a RecurrentActorCriticPolicy, whose methods are known to be sb3-contrib's."""
    lstm = policy.lstm_actor
    for each in (lstm, policy.lstm_critic):
        if each is None:
            continue
        if type(each) is not nn.LSTM:
            raise NotCompilable(f"The recurrent layer must be torch.nn.LSTM, got a {type(each).__name__}.")
        if other := [name for name in ("batch_first", "bidirectional", "proj_size", "dropout") if getattr(each, name)]:
            raise NotCompilable(f"An LSTM with {other[0]} cannot be translated to JAX.")
    encoding, inputs = export_view(policy, _inputs)
    example = torch.zeros((1, lstm.hidden_size), device=policy.device)
    behind = export_module(ModuleView(policy, _layers_behind), example, example)
    names = tuple(name for name, _ in policy.named_parameters() if name.startswith(("lstm_actor.", "lstm_critic.")))
    critic = "own" if policy.lstm_critic is not None else "shared" if policy.shared_lstm else "none"
    settings = behind, names, lstm.num_layers, lstm.hidden_size, critic
    return ExportedRecurrentPolicy(encoding, inputs, head, exploration, *settings)


def require_trainable(policy: ActorCriticPolicy, network: ExportedPolicy) -> None:
    """Refuse policies that act as their translation does, but would learn something else."""
    base = _base(policy)
    require_methods(policy, base, (*TRAINING, "q_values") if base is PQNPolicy else TRAINING)
    require_same_gradients(policy, network.modules, policy.optimizer, network.learnt_elsewhere)


def require_sb3s_predict(policy: nn.Module) -> None:
    """Refuse policies that override how `predict` chooses actions."""
    require_methods(policy, _base(policy), PREDICTION)


def _features(policy: ActorCriticPolicy, x: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the features of the actor and of the critic."""
    pi_features = policy.pi_features_extractor(x)
    return pi_features, pi_features if policy.share_features_extractor else policy.vf_features_extractor(x)


def _layers_behind(
    policy: ActorCriticPolicy, of_actor: torch.Tensor, of_critic: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Compute the outputs of an ExportedPolicy's module from the features, or from the outputs of LSTMs."""
    latent_pi = policy.mlp_extractor.policy_net(of_actor)
    latent_vf = policy.mlp_extractor.value_net(of_critic)
    return latent_pi, policy.action_net(latent_pi), policy.value_net(latent_vf)


def _networks(policy: ActorCriticPolicy, x: Encoded) -> tuple[torch.Tensor, ...]:
    return _layers_behind(policy, *_features(policy, x))


def _values(policy: PQNPolicy, x: Encoded) -> torch.Tensor:
    values: torch.Tensor = policy.mlp_extractor.q_net(policy.pi_features_extractor(x))
    return values


def _inputs(policy: Any, x: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the inputs of the LSTMs; for a critic without LSTM, the outputs of its layer."""
    pi_features, vf_features = _features(policy, x)
    return pi_features, vf_features if policy.critic is None else policy.critic(vf_features)


def _base(policy: object) -> type:
    """Return the class of SB3, of sb3-contrib or of `bridge.stock` whose methods are translated."""
    classes = (
        PQNPolicy,
        maskable_recurrent_policy(),
        contrib_class(*MASKABLE_POLICY),
        contrib_class(*RECURRENT_POLICY),
    )
    return next((cls for cls in classes if isinstance(policy, cls)), ActorCriticPolicy)


def _require_known(policy: ActorCriticPolicy) -> None:
    """Refuse what tracing would not show."""
    base = _base(policy)
    if not isinstance(policy, base):
        raise NotCompilable(f"The policy must be an ActorCriticPolicy, got a {type(policy).__name__}.")
    require_methods(policy, base, [name for name in ACTING if hasattr(base, name)])
    if is_recurrent(policy):
        require_methods(policy, base, ("_process_sequence",))
    expected = QExtractor if base is PQNPolicy else MlpExtractor
    if type(policy.mlp_extractor) is not expected:
        got = type(policy.mlp_extractor).__name__
        raise NotCompilable(f"mlp_extractor must be SB3's {expected.__name__}, got a {got}.")
    value_net: nn.Module = policy.value_net
    if base is PQNPolicy and type(value_net) is not Largest:
        raise NotCompilable(f"value_net must be PQN's, got a {type(value_net).__name__}.")
    extractors = (policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor)
    if policy.share_features_extractor and len(set(extractors)) > 1:
        raise NotCompilable("share_features_extractor is set, but the policy has several features extractors.")
    require_no_forward_hooks(policy)


@functools.lru_cache(maxsize=64)
def _require_shapes(network: ExportedPolicy, dtype: torch.dtype) -> None:
    """Refuse networks whose results do not have the shapes of the distribution's numbers and of values."""

    def actions_and_values(vector: Params, observation: Observation) -> tuple[jax.Array, jax.Array]:
        distribution, value = network.apply(vector, observation)
        return distribution.mode(), value

    action, value = shapes_given(network, actions_and_values, dtype)
    if value != (2,) or action[0] != 2:
        raise NotCompilable(
            f"For a batch of two observations, the networks returned actions of shape {action} and values of shape "
            f"{value}."
        )


def _head(policy: ActorCriticPolicy) -> ActionHead:
    head, found = export_head(policy.action_space), type(policy.action_dist)
    known = [cls for cls, kind in HEADS.items() if kind == head.kind]
    if is_maskable(policy):  # MaskablePPO's distributions have the names of SB3's
        known = [contrib_class("common.maskable.distributions", f"Maskable{cls.__name__}") for cls in known]
        head = head.in_choices()
    if found not in known:
        raise NotCompilable(f"A {found.__name__} over {policy.action_space} cannot be translated to JAX.")
    return head


def _exploration(policy: ActorCriticPolicy) -> Exploration | None:
    distribution = policy.action_dist
    if not isinstance(distribution, distributions.StateDependentNoiseDistribution):
        return None
    return export_exploration(distribution, squash=policy.squash_output, learn_features=False)
