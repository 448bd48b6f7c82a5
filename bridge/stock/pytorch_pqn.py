"""PQN in PyTorch: parallelised Q-learning (Gallici et al. 2025, https://arxiv.org/abs/2407.04811) in SB3's terms."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import utils
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, Schedule
from torch import nn

# Older versions of SB3 have only the function.
LINEAR: Callable[[float, float, float], Schedule] = getattr(utils, "LinearSchedule", None) or utils.get_linear_fn
# Of an action that is never taken, so that its logarithm is finite.
SMALLEST_PROBABILITY = 1e-30


class QExtractor(nn.Module):
    """Linear layers, each with a layer norm before its activation, from features to the values of all actions."""

    def __init__(
        self, features_dim: int, net_arch: list[int], activation_fn: type[nn.Module], num_actions: int
    ) -> None:
        super().__init__()
        sizes, layers = [features_dim, *net_arch], list[nn.Module]()
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), activation_fn()]
        self.q_net = nn.Sequential(*layers, nn.Linear(sizes[-1], num_actions))

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values of all actions twice: as what the distribution is made from, and what the value is."""
        values = self.q_net(features)
        return values, values

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        """Return the values of all actions."""
        values: torch.Tensor = self.q_net(features)
        return values

    forward_critic = forward_actor


class Largest(nn.Module):
    """The largest of the values of all actions, (batch, 1)."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.max(dim=1, keepdim=True).values


class LayerNormCNN(NatureCNN):
    """NatureCNN with a layer norm before each activation."""

    def __init__(self, observation_space: gymnasium.Space[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(observation_space, *args, **kwargs)
        layers = list[nn.Module]()
        with torch.no_grad():
            x = torch.as_tensor(observation_space.sample()[None]).float()
            for layer in self.cnn:
                x = layer(x)
                layers += [layer, *([nn.LayerNorm(x.shape[1:])] if isinstance(layer, nn.Conv2d) else [])]
        self.cnn = nn.Sequential(*layers)
        linear, activation = self.linear
        self.linear = nn.Sequential(linear, nn.LayerNorm(self.features_dim), activation)


class PQNPolicy(ActorCriticPolicy):
    """Q-network that acts epsilon-greedily. As an ActorCriticPolicy, it returns the best action's value.

    Args:
      net_arch: sizes of the hidden layers, each of which has a layer norm.
      others: as of SB3's DQNPolicy.
    """

    action_space: spaces.Discrete
    net_arch: list[int]

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        use_sde: bool = False,
    ) -> None:
        if net_arch is None:
            net_arch = [] if issubclass(features_extractor_class, NatureCNN) else [64, 64]
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch,
            activation_fn,
            use_sde=use_sde,
            features_extractor_class=features_extractor_class,
            features_extractor_kwargs=features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )

    def _build(self, lr_schedule: Schedule) -> None:
        num_actions = int(self.action_space.n)
        self.mlp_extractor: Any = QExtractor(self.features_dim, self.net_arch, self.activation_fn, num_actions)
        self.value_net: Any = Largest()
        # The share of random actions: a parameter, so that it is where the weights are. Its gradient is 0.
        self.exploration_rate = nn.Parameter(torch.ones(1))
        make: Callable[..., torch.optim.Optimizer] = self.optimizer_class
        self.optimizer = make(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _get_constructor_parameters(self) -> dict[str, object]:
        names = ("use_sde", "log_std_init", "squash_output", "full_std", "use_expln", "ortho_init")
        return {name: value for name, value in super()._get_constructor_parameters().items() if name not in names}

    def q_values(self, obs: PyTorchObs) -> torch.Tensor:
        """Return the value of each action, (batch, n)."""
        values: torch.Tensor = self.mlp_extractor.forward_actor(self.extract_features(obs))
        return values

    def _get_action_dist_from_latent(self, latent_pi: torch.Tensor) -> Distribution:
        num = latent_pi.shape[1]
        greedy = nn.functional.one_hot(latent_pi.argmax(dim=1), num)
        probabilities = self.exploration_rate / num + (1 - self.exploration_rate) * greedy
        return self.action_dist.proba_distribution(probabilities.clamp_min(SMALLEST_PROBABILITY).log())


class PQNCnnPolicy(PQNPolicy):
    """PQNPolicy for images."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"features_extractor_class": LayerNormCNN, **kwargs})


class PQNMultiInputPolicy(PQNPolicy):
    """PQNPolicy for Dict observations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"features_extractor_class": CombinedExtractor, **kwargs})


class PQN(OnPolicyAlgorithm):
    """Parallelised Q-learning: Q-learning from rollouts, without a replay buffer and without a target network.

    Args:
      policy, env, learning_rate, gamma, stats_window_size, tensorboard_log, policy_kwargs, verbose: as in SB3's PPO.
      rollout_buffer_class, rollout_buffer_kwargs, seed, device, _init_setup_model: as in SB3's PPO.
      n_steps: steps of each environment in a rollout.
      batch_size, n_epochs: size of the minibatches, and passes over a rollout.
      gae_lambda: the lambda of the returns that values are moved to.
      max_grad_norm: longer gradients are scaled down to this norm.
      exploration_initial_eps, exploration_final_eps, exploration_fraction: the share of random actions at first and at
        last, and the share of the training in which it falls.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": PQNPolicy,
        "CnnPolicy": PQNCnnPolicy,
        "MultiInputPolicy": PQNMultiInputPolicy,
    }
    policy: PQNPolicy
    exploration_rate: float = 1.0

    def __init__(
        self,
        policy: str | type[PQNPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 2.5e-4,
        n_steps: int = 32,
        batch_size: int = 128,
        n_epochs: int = 2,
        gamma: float = 0.99,
        gae_lambda: float = 0.65,
        max_grad_norm: float = 10.0,
        exploration_fraction: float = 0.1,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.05,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        if n_steps < 1:
            raise ValueError(f"n_steps must be at least 1, got {n_steps}.")
        self.batch_size, self.n_epochs = batch_size, n_epochs
        self.exploration_fraction = exploration_fraction
        self.exploration_initial_eps, self.exploration_final_eps = exploration_initial_eps, exploration_final_eps
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            ent_coef=0.0,
            vf_coef=0.0,
            max_grad_norm=max_grad_norm,
            use_sde=False,
            sde_sample_freq=-1,
            rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            supported_action_spaces=(spaces.Discrete,),
            _init_setup_model=_init_setup_model,
        )

    def _setup_model(self) -> None:
        super()._setup_model()
        first, last = self.exploration_initial_eps, self.exploration_final_eps
        # Without a part in which it falls, it is the last number from the beginning.
        first = first if self.exploration_fraction else last
        self.exploration_schedule = LINEAR(first, last, self.exploration_fraction or 1)
        self._set_exploration_rate()

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        self._set_exploration_rate()

    def _set_exploration_rate(self) -> None:
        """Let the policy explore as often as the schedule says for the present progress."""
        self.exploration_rate = float(self.exploration_schedule(self._current_progress_remaining))
        with torch.no_grad():
            self.policy.exploration_rate.fill_(self.exploration_rate)

    def train(self) -> None:
        """Move the value of each action of the rollout to its lambda return."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses, means = [], []
        for _ in range(self.n_epochs):
            for data in self.rollout_buffer.get(self.batch_size):
                values = self.policy.q_values(data.observations).gather(1, data.actions.long()).flatten()
                loss = 0.5 * nn.functional.mse_loss(values, data.returns)
                losses.append(loss.item())
                means.append(values.mean().item())
                self.policy.optimizer.zero_grad()
                (loss + 0 * self.policy.exploration_rate.sum()).backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
                self.policy.optimizer.step()
        self._n_updates += self.n_epochs
        buffer = self.rollout_buffer
        # Of the next rollout, which is logged next.
        self.logger.record("rollout/exploration_rate", self.exploration_rate)
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("train/q_values", np.mean(means))
        self.logger.record(
            "train/explained_variance", utils.explained_variance(buffer.values.flatten(), buffer.returns.flatten())
        )
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
