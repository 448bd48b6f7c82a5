"""Rollouts of a PyTorch policy that stay on the device: the loop that fills a TensorRolloutBuffer."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from bridge.buffers.tensor_rollout import TensorRolloutBuffer, to_host
from bridge.engine.callbacks import looks_at_steps
from bridge.vec_env.infos import ended_infos
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.vec_env.packing import Packing
from bridge.vec_env.programs import Outputs

# After so many steps the host looks at what ended in them. Looking waits for the device, so it must be rare; until then
# everything that came out of these steps is kept, and must fit into the caches of a CPU, so it must not be too rare.
MOST_STEPS_UNSEEN = 16


def collect_rollouts(
    algorithm: OnPolicyAlgorithm,
    env: JaxVecEnv,
    callback: BaseCallback,
    rollout_buffer: TensorRolloutBuffer,
    n_rollout_steps: int,
) -> bool:
    """What `OnPolicyAlgorithm.collect_rollouts` does, on tensors: observations and actions never leave the device.

    If there is any callback but SB3's progress bar, then before each `on_step` callbacks get NumPy copies of the step:
    the locals `actions`, `clipped_actions`, `new_obs`, `rewards`, `dones` and `infos`; the step is in the buffer and in
    `ep_info_buffer` already. Infos are for reading, and have `TimeLimit.truncated`, and where an episode ended
    `episode` and `terminal_observation`. Otherwise no locals are given, and the host waits for the device only every
    MOST_STEPS_UNSEEN steps. The environment's own info, `is_success` included, does not come out of `step_torch`, so
    nobody sees it.

    Args:
      algorithm: its policy may be on another device than the environments; then each step is copied.
      env: the environments of the algorithm, with no wrapper around them.
      callback: called as by SB3.
      rollout_buffer: is overwritten.
      n_rollout_steps: at most the size of the buffer.

    Returns:
      False if a callback ended the training. The algorithm goes on from the last step taken in either case.

    Raises:
      RuntimeError: the algorithm has no observation to start from.
    """
    if algorithm._last_obs is None:
        raise RuntimeError("collect_rollouts needs a last observation, got None: call learn, which resets env.")
    policy, device = algorithm.policy, algorithm.device
    policy.set_training_mode(False)
    rollout_buffer.reset()
    # Before the draw, so that a checkpoint that it saves is followed by the same one.
    callback.on_rollout_start()
    if algorithm.use_sde:
        policy.reset_noise(env.num_envs)

    watched = looks_at_steps(callback)
    most_unseen = 1 if watched else MOST_STEPS_UNSEEN
    unseen: list[_Step] = []
    episodes = _Episodes(env)
    to_env = _actions_to_env(algorithm)
    observation: Any = obs_as_tensor(algorithm._last_obs, device)
    episode_starts = torch.as_tensor(algorithm._last_episode_starts, device=device)
    shown: dict[str, Any] = {"self": algorithm, "env": env, "callback": callback, "rollout_buffer": rollout_buffer}
    shown["n_rollout_steps"] = n_rollout_steps
    try:
        for n_steps in range(n_rollout_steps):
            if algorithm.use_sde and algorithm.sde_sample_freq > 0 and n_steps % algorithm.sde_sample_freq == 0:
                policy.reset_noise(env.num_envs)
            with torch.no_grad():
                actions, values, log_probs = policy(observation)
                clipped_actions = to_env(actions)
            new_obs, rewards, *ends = env.step_torch(clipped_actions)
            algorithm.num_timesteps += env.num_envs
            unseen.append(_Step(observation, actions, rewards, episode_starts, values, log_probs, *ends))
            terminated, truncated, final_observation = ends
            observation, episode_starts = _as_kept(rollout_buffer, new_obs), (terminated | truncated).to(device)
            if len(unseen) == most_unseen or n_steps == n_rollout_steps - 1:
                seen = _look(algorithm, rollout_buffer, unseen, episodes)
                if watched:
                    shown.update(n_steps=n_steps, obs_tensor=unseen[0].observation, values=values, log_probs=log_probs)
                    shown.update(actions=to_host(actions), clipped_actions=to_host(clipped_actions))
                    shown.update(new_obs=to_host(observation), rewards=seen.rewards[0], dones=seen.dones[0])
                    shown.update(infos=_infos(env, seen, _as_kept(rollout_buffer, final_observation)))
                    callback.update_locals(shown)
                unseen.clear()
            if not callback.on_step():
                return False
        with torch.no_grad():
            last_values = policy.predict_values(observation)
    finally:
        # This also waits until PyTorch has read all that is JAX's, and which JAX may use again from here on.
        algorithm._last_obs = to_host(observation)
        algorithm._last_episode_starts = to_host(episode_starts)
    rollout_buffer.compute_returns_and_advantage(last_values, episode_starts)
    callback.on_rollout_end()
    return True


class _Step(NamedTuple):
    """One step, on the device; leading axis `num_envs`. The first six are what `TensorRolloutBuffer.add` takes."""

    observation: Any
    actions: torch.Tensor
    rewards: torch.Tensor
    episode_starts: torch.Tensor
    values: torch.Tensor
    log_probs: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    final_observation: Any


class _Seen(NamedTuple):
    """Some steps on the host, (steps, num_envs): rewards as the environments gave them; truncated and not terminated.

    The episodes that ended in them are in the order of steps, and within a step of lanes.
    """

    rewards: np.ndarray
    dones: np.ndarray
    truncated: np.ndarray
    lanes: np.ndarray
    episodes: list[dict[str, Any]]


class _Episodes:
    """The episodes that are running, on the host, from where the environments have them."""

    def __init__(self, env: JaxVecEnv) -> None:
        running = _running_episodes(env.programs.state)(env.packed_state)
        self._returns, self._lengths = np.array(running[0], np.float64), np.array(running[1])
        self._t_start = env.t_start

    def add(self, rewards: np.ndarray, dones: np.ndarray, most: int) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """The lanes and the records (as Monitor's: `r`, `l`, `t`) of the last `most` episodes that ended in some steps.

        Args:
          rewards, dones: (steps, num_envs).
        """
        num_steps, num_envs = rewards.shape
        # Lane by lane, the steps fall into stretches, of which each belongs to one episode.
        starts = np.ones((num_envs, num_steps), bool)
        starts[:, 1:] = dones[:-1].T
        first = starts.reshape(-1).nonzero()[0]
        returns = np.add.reduceat(rewards.T.reshape(-1), first, dtype=np.float64)
        lengths = np.diff(first, append=num_envs * num_steps)
        opening = first % num_steps == 0  # one stretch in each lane, that of the episode which was running already
        returns[opening] += self._returns
        lengths[opening] += self._lengths
        lanes, last = np.divmod(np.append(first[1:], num_envs * num_steps) - 1, num_steps)
        closed = dones[last, lanes]
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._returns[lanes[~closed]], self._lengths[lanes[~closed]] = returns[~closed], lengths[~closed]

        seconds = round(time.time() - self._t_start, 6)
        order = np.lexsort((lanes[closed], last[closed]))[-most:]
        lanes, returns, lengths = (column[closed][order] for column in (lanes, returns, lengths))
        return lanes, [{"r": r, "l": l, "t": seconds} for r, l in zip(returns.tolist(), lengths.tolist())]  # noqa: E741


@functools.lru_cache(maxsize=64)
def _running_episodes(state: Packing) -> Callable[[Any], Any]:
    """A program from a packed VectorState to the returns and lengths of the running episodes, and nothing else."""

    def read(packed: Any) -> tuple[jax.Array, jax.Array]:
        unpacked = state.unpack(packed)
        return unpacked.episode_return, unpacked.episode_length

    return jax.jit(read)


def _look(algorithm: OnPolicyAlgorithm, buffer: TensorRolloutBuffer, steps: list[_Step], episodes: _Episodes) -> _Seen:
    """Put steps into the buffer, see on the host how they ended, and add to their rewards what truncation cut off."""
    first = buffer.pos
    *columns, terminated, truncated, final_observations = zip(*steps)
    buffer.add_steps(columns)
    rewards = to_host(buffer.rewards[first : buffer.pos])
    terminated, truncated = to_host(torch.stack(terminated)), to_host(torch.stack(truncated))
    dones, truncated = terminated | truncated, truncated & ~terminated
    history = algorithm.ep_info_buffer
    assert history is not None
    # A callback wants all of a single step; of more steps, only what the history can hold is of any use.
    lanes, records = episodes.add(rewards, dones, most=max(history.maxlen or rewards.size, buffer.n_envs))
    history.extend(records)
    _bootstrap(algorithm, buffer, first, final_observations, truncated)
    return _Seen(rewards, dones, truncated, lanes, records)


def _bootstrap(
    algorithm: OnPolicyAlgorithm, buffer: TensorRolloutBuffer, first: int, observations: Any, truncated: np.ndarray
) -> None:
    """Add the discounted values of the last observations to the rewards of truncated steps, from `first` on."""
    if not truncated.any():
        return
    steps, lanes = (torch.from_numpy(index) for index in truncated.nonzero())
    lanes_of_steps = torch.split(lanes, truncated.sum(axis=1).tolist())
    last_observations = [
        jax.tree.map(lambda leaf, lanes=lanes: leaf[lanes], observation)
        for observation, lanes in zip(observations, lanes_of_steps, strict=True)
        if len(lanes)
    ]
    last_observation = jax.tree.map(lambda *leaves: torch.cat(leaves), *last_observations)
    with torch.no_grad():
        values = algorithm.policy.predict_values(_as_kept(buffer, last_observation))
    buffer.rewards[first + steps, lanes] += algorithm.gamma * values.flatten()


def _infos(env: JaxVecEnv, seen: _Seen, final_observation: Any) -> list[dict[str, Any]]:
    """The infos of a single step."""
    infos = env.quiet_infos({})
    if len(seen.lanes):
        outputs = Outputs(
            terminated=~seen.truncated[0],
            final_observation=to_host(final_observation),
            episode_return=np.zeros(env.num_envs),
            episode_length=np.zeros(env.num_envs, int),
            final_info={},
        )
        ended = ended_infos(outputs, (seen.lanes,), env.t_start)
        for lane, info, episode in zip(seen.lanes.tolist(), ended, seen.episodes, strict=True):
            infos[lane] = {**info, "episode": episode}
    return infos


def _actions_to_env(algorithm: OnPolicyAlgorithm) -> Callable[[torch.Tensor], torch.Tensor]:
    """From the actions of the policy to what the environments take: clipped, or unscaled from [-1, 1]."""
    # PyTorch may have an accelerator that JAX has not.
    to_device = torch.Tensor.cpu if jax.default_backend() == "cpu" else lambda actions: actions
    space = algorithm.action_space
    if not isinstance(space, spaces.Box):
        return to_device
    low, high = (torch.as_tensor(bound, device=algorithm.device) for bound in (space.low, space.high))
    if algorithm.policy.squash_output:
        return lambda actions: to_device(low + 0.5 * (actions + 1) * (high - low))
    return lambda actions: to_device(torch.clamp(actions, low, high))


def _as_kept(buffer: TensorRolloutBuffer, observation: Any) -> Any:
    """A batch of observations on the device of the buffer, in the dtypes of their space."""
    return jax.tree.map(lambda kept, leaf: leaf.to(kept.device, kept.dtype), buffer.observations, observation)
