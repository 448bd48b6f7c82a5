"""Translation of sb3-contrib's recurrent policies: features, LSTMs and the layers behind them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import torch
from torch import nn

from bridge.errors import NotCompilable
from bridge.translate.policies.exported_network import Encoded, Exploration, ModuleView, export_view
from bridge.translate.policies.exported_policy import ExportedPolicy, features, layers_behind
from bridge.translate.pytorch.modules import ExportedModule, Params, export_module
from jaxenvs.learn.interfaces import Memory, Recalled, unmasked
from jaxenvs.learn.networks.actor_critic import ActionHead
from jaxenvs.learn.networks.lstm import latents, no_memory, remember


@dataclasses.dataclass(frozen=True)
class ExportedRecurrentPolicy(ExportedPolicy):
    """ExportedPolicy for observations that are Recalled. Its module computes the features of actor and critic.

    Attributes:
      behind: maps the outputs of the LSTMs to the outputs of an ExportedPolicy's module.
      lstms: the names of the LSTMs' parameters.
      layers, size: of each LSTM.
      critic: one of `jaxenvs.learn.networks.lstm.CRITICS`.
    """

    behind: ExportedModule
    lstms: tuple[str, ...]
    layers: int
    size: int
    critic: str

    @property
    def modules(self) -> tuple[ExportedModule, ...]:
        return self.module, self.behind

    @property
    def learnt_elsewhere(self) -> frozenset[str]:
        return frozenset({"log_std", *self.lstms})

    def _outputs(self, params: Mapping[str, jax.Array], observation: Any) -> Any:
        pi, vf = self.numbers(params, observation.observation)
        return self.behind(params, *latents(params, pi, vf, observation, self.critic))

    def recall(self, params: Params, seen: Recalled) -> dict[str, Memory]:
        """Return the recurrent state after a step, for each row."""
        params, (seen, _) = self.named(params), unmasked(seen)
        pi, vf = self.numbers(params, seen.observation)
        return remember(params, pi, vf, seen, self.critic)

    def no_memory(self, params: Params, num_envs: int) -> dict[str, Memory]:
        """Return the recurrent state before the first step."""
        return no_memory(num_envs, self.layers, self.size, jax.tree.leaves(params)[0].dtype)


def _inputs(policy: Any, x: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the inputs of the LSTMs; for a critic without LSTM, the outputs of its layer."""
    pi_features, vf_features = features(policy, x)
    return pi_features, vf_features if policy.critic is None else policy.critic(vf_features)


def export_recurrent_policy(policy: Any, head: ActionHead, exploration: Exploration | None) -> ExportedRecurrentPolicy:
    """Translate a RecurrentActorCriticPolicy, whose methods are known to be sb3-contrib's."""
    lstm = policy.lstm_actor
    for each in (lstm, policy.lstm_critic):
        if each is not None:
            _require_known(each)
    encoding, inputs = export_view(policy, _inputs)
    example = torch.zeros((1, lstm.hidden_size), device=policy.device)
    behind = export_module(ModuleView(policy, layers_behind), example, example)
    names = tuple(name for name, _ in policy.named_parameters() if name.startswith(("lstm_actor.", "lstm_critic.")))
    critic = "own" if policy.lstm_critic is not None else "shared" if policy.shared_lstm else "none"
    settings = behind, names, lstm.num_layers, lstm.hidden_size, critic
    return ExportedRecurrentPolicy(encoding, inputs, head, exploration, *settings)


def _require_known(lstm: nn.LSTM) -> None:
    if type(lstm) is not nn.LSTM:
        raise NotCompilable(f"The recurrent layer must be torch.nn.LSTM, got a {type(lstm).__name__}.")
    other = [name for name in ("batch_first", "bidirectional", "proj_size", "dropout") if getattr(lstm, name)]
    if other:
        raise NotCompilable(f"An LSTM with {other[0]} cannot be translated to JAX.")
