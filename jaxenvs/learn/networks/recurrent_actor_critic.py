"""Recurrent networks: perceptrons of actor and critic behind LSTMs, as sb3-contrib's MlpLstmPolicy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax

from jaxenvs.learn.interfaces import Memory, Recalled, unmasked
from jaxenvs.learn.networks.actor_critic import ActorCritic, linear
from jaxenvs.learn.networks.lstm import CRITICS, latents, no_memory, remember


@dataclasses.dataclass(frozen=True)
class RecurrentActorCritic(ActorCritic):
    """ActorCritic behind LSTMs, for RecurrentPPO, with the shape and initialization of sb3-contrib's MlpLstmPolicy.

    Its observations are Recalled: they include the recurrent states. For MaskableRecurrentPPO they are also Masked.

    Attributes:
      lstm_hidden_size, n_lstm_layers: of each LSTM.
      critic_lstm: "own": the critic has a separate LSTM. "shared": it reads the actor's, without a gradient into it.
        "none": it has a linear layer of that size instead.
    """

    lstm_hidden_size: int = 256
    n_lstm_layers: int = 1
    critic_lstm: str = "own"

    def __post_init__(self) -> None:
        if self.critic_lstm not in CRITICS:
            raise ValueError(f"critic_lstm must be one of {', '.join(map(repr, CRITICS))}, got {self.critic_lstm!r}.")

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        """Draw parameters as ActorCritic does, and the LSTMs' as PyTorch does: uniform up to 1 /
        sqrt(lstm_hidden_size).
        """
        key, lstm_key = jax.random.split(key)
        params, size, inputs = super().init(key), self.lstm_hidden_size, self.extractor.size
        shapes: dict[str, tuple[int, ...]] = {}
        for name in ("lstm_actor", "lstm_critic")[: 1 + (self.critic_lstm == "own")]:
            for layer in range(self.n_lstm_layers):
                before = inputs if layer == 0 else size
                shapes[f"{name}.weight_ih_l{layer}"] = (4 * size, before)
                shapes[f"{name}.weight_hh_l{layer}"] = (4 * size, size)
                shapes[f"{name}.bias_ih_l{layer}"] = shapes[f"{name}.bias_hh_l{layer}"] = (4 * size,)
        bounds = dict.fromkeys(shapes, 1 / math.sqrt(size))
        if self.critic_lstm == "none":
            shapes |= {"critic.weight": (size, inputs), "critic.bias": (size,)}
            bounds |= dict.fromkeys(("critic.weight", "critic.bias"), 1 / math.sqrt(inputs))
        for (name, shape), each in zip(shapes.items(), jax.random.split(lstm_key, len(shapes))):
            params[name] = jax.random.uniform(each, shape, float, -bounds[name], bounds[name])
        return params

    def recall(self, params: dict[str, jax.Array], seen: Recalled) -> dict[str, Memory]:
        """Return the recurrent states after a step of each row."""
        seen, _ = unmasked(seen)
        return remember(params, *self._features(params, seen), seen, self.critic_lstm)

    def no_memory(self, params: dict[str, jax.Array], num_envs: int) -> dict[str, Memory]:
        """Return the zero recurrent states before the first step."""
        return no_memory(num_envs, self.n_lstm_layers, self.lstm_hidden_size, params["value_net.weight"].dtype)

    def _inputs_of(self, params: dict[str, jax.Array], observation: Recalled) -> tuple[jax.Array, jax.Array]:
        return latents(params, *self._features(params, observation), observation, self.critic_lstm)

    def _features(self, params: dict[str, jax.Array], seen: Recalled) -> tuple[jax.Array, jax.Array]:
        observation: Any = seen.observation
        features = self.extractor(observation, params["value_net.weight"].dtype)
        return features, linear(params, "critic", features) if self.critic_lstm == "none" else features

    @property
    def _inputs(self) -> int:
        return self.lstm_hidden_size
