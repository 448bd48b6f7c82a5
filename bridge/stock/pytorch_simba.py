"""SimBa policies (Lee et al. 2025, https://arxiv.org/abs/2410.09754): residual blocks with layer norm.

Each number of `net_arch` is a block of that width; all blocks of a network have the same. The running normalization of
observations that the paper puts before the network is SB3's VecNormalize. Stock SB3 loads these policies from a zip, if
jaxenvs is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import Actor, TD3Policy
from torch import nn

# Widths of the paper: the actor's, and the critics'.
ACTOR, CRITIC = (128,), (512, 512)


class ResidualBlock(nn.Module):
    """x + linear(relu(linear(layer_norm(x)))), four times as wide inside."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.layers = nn.Sequential(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a batch of the same shape."""
        changed: torch.Tensor = x + self.layers(self.norm(x))
        return changed


def residual(inputs: int, sizes: Sequence[int], *last: nn.Module) -> nn.Sequential:
    """Return a linear layer, residual blocks, a layer norm and the last layers of a network.

    Raises:
      ValueError: the blocks have several widths, or there is none.
    """
    if len({*sizes}) != 1:
        raise ValueError(f"net_arch of a SimbaPolicy must have one or more blocks of one width, got {[*sizes]}.")
    return nn.Sequential(
        nn.Linear(inputs, sizes[0]), *(ResidualBlock(size) for size in sizes), nn.LayerNorm(sizes[0]), *last
    )


class SimbaActorCriticPolicy(ActorCriticPolicy):
    """SimBa policy for PPO and A2C."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"net_arch": {"pi": [*ACTOR], "vf": [*CRITIC]}, **kwargs})

    def _build_mlp_extractor(self) -> None:
        super()._build_mlp_extractor()
        sizes = self.net_arch if isinstance(self.net_arch, dict) else {"pi": self.net_arch, "vf": self.net_arch}
        self.mlp_extractor.policy_net = residual(self.features_dim, sizes.get("pi", ()))
        self.mlp_extractor.value_net = residual(self.features_dim, sizes.get("vf", ()))


class SimbaOffPolicy:
    """Gives a policy of SAC or TQC, before which it is mixed in, residual blocks."""

    critic_kwargs: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"net_arch": {"pi": [*ACTOR], "qf": [*CRITIC]}, **kwargs})

    def make_actor(self, *args: object, **kwargs: object) -> Any:
        """Return the actor, as SB3 makes it, with residual blocks."""
        sb3s: Any = super()
        actor = sb3s.make_actor(*args, **kwargs)
        actor.latent_pi = residual(actor.features_dim, actor.net_arch)
        return actor.to(sb3s.device)

    def make_critic(self, *args: object, **kwargs: object) -> Any:
        """Return the critics, as SB3 makes them, with residual blocks."""
        sb3s: Any = super()
        critic = sb3s.make_critic(*args, **kwargs)
        sizes = self.critic_kwargs["net_arch"]
        for index, network in enumerate(critic.q_networks):
            critic.q_networks[index] = residual(network[0].in_features, sizes, network[-1])
            setattr(critic, f"qf{index}", critic.q_networks[index])
        return critic.to(sb3s.device)


class SimbaSACPolicy(SimbaOffPolicy, SACPolicy):
    """SimBa policy for SAC."""


class SimbaTD3Policy(SimbaOffPolicy, TD3Policy):
    """SimBa policy for TD3 and DDPG."""

    def make_actor(self, *args: Any, **kwargs: Any) -> Actor:
        """Return the actor, as SB3 makes it, with residual blocks."""
        actor = TD3Policy.make_actor(self, *args, **kwargs)
        actor.mu = residual(actor.features_dim, actor.net_arch, *list(actor.mu)[-2:])
        return actor.to(self.device)
