"""MaskableRecurrentPPO in PyTorch: the LSTMs of sb3-contrib's RecurrentPPO with the masks of its MaskablePPO."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import sb3_contrib
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from sb3_contrib.common.maskable.utils import get_action_masks
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback, RolloutBufferSamples, Schedule
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv


class MaskableRecurrentActorCriticPolicy(RecurrentActorCriticPolicy):
    """RecurrentActorCriticPolicy of sb3-contrib whose methods also take masks of the legal actions."""

    # Of the call that is running, for the method that makes the distribution, which sb3-contrib passes no masks.
    _action_masks: np.ndarray | torch.Tensor | None

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        # Here, so that `predict` gives the policy no new attribute: that is a change that is not known to be safe.
        self._action_masks = None
        self.action_dist: MaskableDistribution = make_masked_proba_distribution(self.action_space)
        if isinstance(self.action_space, spaces.MultiBinary):  # two numbers for each bit instead of one
            self.action_net = self.action_dist.proba_distribution_net(latent_dim=self.mlp_extractor.latent_dim_pi)
            if self.ortho_init:
                self.action_net.apply(functools.partial(self.init_weights, gain=0.01))

    @contextlib.contextmanager
    def _masking(self, action_masks: np.ndarray | torch.Tensor | None) -> Iterator[None]:
        before = self._action_masks
        self._action_masks = before if action_masks is None else action_masks
        try:
            yield
        finally:
            self._action_masks = before

    def _get_action_dist_from_latent(self, latent_pi: torch.Tensor) -> MaskableDistribution:
        distribution = self.action_dist.proba_distribution(action_logits=self.action_net(latent_pi))
        if self._action_masks is not None:
            distribution.apply_masking(self._action_masks)
        return distribution

    def forward(self, *args: Any, action_masks: np.ndarray | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Return actions, values, log-probabilities and LSTM states, as sb3-contrib's `forward`."""
        with self._masking(action_masks):
            return super().forward(*args, **kwargs)

    def get_distribution(self, *args: Any, action_masks: np.ndarray | None = None, **kwargs: Any) -> Any:
        """Return the distribution over actions and the LSTM states, as sb3-contrib's `get_distribution`."""
        with self._masking(action_masks):
            return super().get_distribution(*args, **kwargs)

    def evaluate_actions(  # type: ignore[override]
        self, obs: Any, actions: torch.Tensor, lstm_states: RNNStates, episode_starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return values, log-probabilities and entropies, with the masks of `lstm_states` if these are MaskedStates."""
        with self._masking(getattr(lstm_states, "action_masks", None)):
            return super().evaluate_actions(obs, actions, lstm_states, episode_starts)

    def _predict(self, *args: Any, action_masks: np.ndarray | None = None, **kwargs: Any) -> Any:
        with self._masking(action_masks):
            return super()._predict(*args, **kwargs)

    def predict(self, *args: Any, action_masks: np.ndarray | None = None, **kwargs: Any) -> tuple[np.ndarray, Any]:
        """Return actions and LSTM states, as sb3-contrib's `predict`."""
        with self._masking(action_masks):
            return super().predict(*args, **kwargs)


class MaskableRecurrentActorCriticCnnPolicy(MaskableRecurrentActorCriticPolicy, RecurrentActorCriticCnnPolicy):
    """Policy for images."""


class MaskableRecurrentMultiInputPolicy(MaskableRecurrentActorCriticPolicy, RecurrentMultiInputActorCriticPolicy):
    """Policy for Dict observations."""


class MaskedStates(NamedTuple):
    """RNNStates with masks of the same steps, which RecurrentPPO's `train` passes on to `evaluate_actions` unread."""

    pi: tuple[torch.Tensor, ...]
    vf: tuple[torch.Tensor, ...]
    action_masks: torch.Tensor


class _WithMasks(RolloutBuffer):
    """Mixin for a recurrent buffer of sb3-contrib's: its samples also have the masks of the legal actions."""

    action_masks: np.ndarray
    mask_dims: int
    pad: Callable[[np.ndarray], torch.Tensor]

    def get(self, batch_size: int | None = None) -> Generator[RolloutBufferSamples, None, None]:
        if self.full and not self.generator_ready:
            self.action_masks = self.swap_and_flatten(self.action_masks)
        yield from super().get(batch_size)

    def _get_samples(self, batch_inds: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        samples: Any = super()._get_samples(batch_inds, *args, **kwargs)
        masks = self.pad(self.action_masks[batch_inds]).reshape(-1, self.mask_dims)
        return samples._replace(lstm_states=MaskedStates(samples.lstm_states.pi, samples.lstm_states.vf, masks))


class MaskableRecurrentRolloutBuffer(_WithMasks, RecurrentRolloutBuffer, MaskableRolloutBuffer):  # type: ignore[misc]
    """RecurrentRolloutBuffer that also has the masks of the legal actions."""


class MaskableRecurrentDictRolloutBuffer(  # type: ignore[misc]
    _WithMasks, RecurrentDictRolloutBuffer, MaskableDictRolloutBuffer
):
    """RecurrentDictRolloutBuffer that also has the masks of the legal actions."""


class MaskableRecurrentPPO(sb3_contrib.RecurrentPPO):
    """RecurrentPPO of sb3-contrib without illegal actions."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MaskableRecurrentActorCriticPolicy,
        "CnnLstmPolicy": MaskableRecurrentActorCriticCnnPolicy,
        "MultiInputLstmPolicy": MaskableRecurrentMultiInputPolicy,
    }
    policy: Any
    _last_obs: Any
    _masks: bool = True

    def _setup_model(self) -> None:
        super()._setup_model()
        given: Any = self.rollout_buffer
        is_dict = isinstance(self.observation_space, spaces.Dict)
        self.rollout_buffer = (MaskableRecurrentDictRolloutBuffer if is_dict else MaskableRecurrentRolloutBuffer)(
            self.n_steps,
            self.observation_space,
            self.action_space,
            given.hidden_state_shape,
            self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
        )

    def learn(  # type: ignore[override]
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "MaskableRecurrentPPO",
        reset_num_timesteps: bool = True,
        use_masking: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train, with MaskablePPO's arguments."""
        self._masks = use_masking
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Return actions and LSTM states, with MaskablePPO's arguments."""
        predicted: tuple[np.ndarray, tuple[np.ndarray, ...] | None] = self.policy.predict(
            observation, state, episode_start, deterministic, action_masks=action_masks
        )
        return predicted

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: Any,
        n_rollout_steps: int,
        use_masking: bool | None = None,
    ) -> bool:
        """Collect a rollout as RecurrentPPO does, with the masks that the environments report before each step."""
        use_masking = self._masks if use_masking is None else use_masking
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        lstm_states: Any = copy.deepcopy(self._last_lstm_states)
        n_steps, action_masks = 0, None
        while n_steps < n_rollout_steps:
            with torch.no_grad():
                obs_tensor = obs_as_tensor(self._last_obs, self.device)
                episode_starts = torch.tensor(self._last_episode_starts, dtype=torch.float32, device=self.device)
                if use_masking:
                    action_masks = get_action_masks(env)
                actions, values, log_probs, lstm_states = self.policy(
                    obs_tensor, lstm_states, episode_starts, action_masks=action_masks
                )
            actions = actions.cpu().numpy()
            new_obs, rewards, dones, infos = env.step(actions)
            self.num_timesteps += env.num_envs
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones)
            n_steps += 1
            for index in np.flatnonzero(dones).tolist():
                self._add_value_behind(rewards, index, infos[index], lstm_states)
            rollout_buffer.add(
                self._last_obs,
                actions.reshape(env.num_envs, -1),
                rewards,
                self._last_episode_starts,
                values,
                log_probs,
                lstm_states=self._last_lstm_states,
                action_masks=action_masks,
            )
            self._last_obs, self._last_episode_starts, self._last_lstm_states = new_obs, dones, lstm_states
        with torch.no_grad():
            episode_starts = torch.tensor(dones, dtype=torch.float32, device=self.device)
            values = self.policy.predict_values(
                obs_as_tensor(self._last_obs, self.device), lstm_states.vf, episode_starts
            )
        rollout_buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        callback.on_rollout_end()
        return True

    def _add_value_behind(self, rewards: np.ndarray, index: int, info: dict[str, Any], lstm_states: RNNStates) -> None:
        """Add the discounted value of the last observation to the reward, if a time limit ended the episode."""
        if info.get("terminal_observation") is None or not info.get("TimeLimit.truncated", False):
            return
        states = tuple(part[:, index : index + 1, :].contiguous() for part in lstm_states.vf)
        no_start = torch.zeros(1, device=self.device)
        with torch.no_grad():
            observation = self.policy.obs_to_tensor(info["terminal_observation"])[0]
            rewards[index] += self.gamma * self.policy.predict_values(observation, states, no_start)[0]
