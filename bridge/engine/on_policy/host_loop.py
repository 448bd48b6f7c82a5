"""Collecting in environments on the host: SB3's loop, with a compiled function where it calls the policy."""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from bridge.engine.acting import EvaluatingActor, unscaled
from bridge.engine.lstm_state import Memory, of_states, read_memory, to_states
from bridge.engine.plan import Plan
from bridge.engine.rollout_buffer import read_rollout, write_memory
from bridge.engine.session import CallbackDoor
from bridge.engine.user_code.overrides import BETWEEN_ROLLOUTS
from bridge.host_env.step_infos import StepInfos
from bridge.sb3 import Infos, OnPolicy
from bridge.vec_env.actions import as_sb3_gives
from jaxenvs.learn import Masked, Recalled
from jaxenvs.learn.interfaces import Arrays, Observation

# The last observations of truncated episodes are evaluated in batches of at most this many.
MOST_ROWS = 256


class HostRollout:
    """Rollout in environments on the host: what `OnPolicyAlgorithm.collect_rollouts` does, with compiled functions.

    The calls of user code are SB3's, in the same order, and the rollout buffer ends with the same contents. Values and
    log-probabilities are computed in each step only if user code may run in it, otherwise for all steps at once.

    Args:
      algorithm: the model.
      plan: its actor acts, as long as it still is the policy. This is checked after each step in which user code may
        run. If it is not, PyTorch's policy acts in the rest of the rollout.
      env, door: called as by SB3.
      buffer: is overwritten.
      sde_sample_freq: for how many steps the noise stays the same.
    """

    def __init__(
        self,
        algorithm: OnPolicy,
        plan: Plan,
        env: VecEnv,
        door: CallbackDoor,
        buffer: RolloutBuffer,
        sde_sample_freq: int,
    ) -> None:
        self._algorithm, self._plan, self._env, self._door, self._buffer = algorithm, plan, env, door, buffer
        self._sde_sample_freq, self._n_steps = sde_sample_freq, buffer.buffer_size
        self._calls_hook = "_update_info_buffer" in plan.user_code
        self._shown: dict[str, Any] = {"self": algorithm, "env": env, "callback": door.callback}
        self._shown |= {"rollout_buffer": buffer, "n_rollout_steps": self._n_steps}
        if algorithm.MASKS:
            self._shown.update(use_masking=algorithm._masks, action_masks=None)
        # Last observations of truncated episodes: step, environment, observation, recurrent state.
        self._truncated: list[tuple[int, int, Any, Any]] = []

    def run(self, has_begun: bool = False) -> bool:
        """Collect the rollout.

        Args:
          has_begun: whether the callback's `on_rollout_start` has been called.

        Returns:
          False as soon as the callback stops training.

        Raises:
          ValueError: the policy returned NaN. The environments are where they were at that step.
        """
        algorithm, plan, num_envs = self._algorithm, self._plan, self._env.num_envs
        if algorithm.policy.training:
            algorithm.policy.set_training_mode(False)
        self._buffer.reset()
        if algorithm.use_sde:
            # So that `predict`, which draws noise in PyTorch, uses the present standard deviation.
            algorithm.policy.reset_noise(num_envs)
        if not has_begun:
            self._door.on_rollout_start()
        self._needs_steps = self._door.needs_steps
        # Whether user code may run in each step, and change the policy.
        self._syncs = (
            self._needs_steps or plan.environments is not None or not BETWEEN_ROLLOUTS.issuperset(plan.user_code)
        )
        self._memory: Any = read_memory(algorithm)
        self._actor: EvaluatingActor | None = None
        self._noise: Any = None
        if isinstance(plan.actor, EvaluatingActor) and (not self._syncs or plan.acts_as_planned(algorithm.policy)):
            self._actor = plan.actor
            self._actor.refresh()
            self._noise = self._actor.draw_noise(num_envs, self._n_steps, self._sde_sample_freq)
        for step in range(self._n_steps):
            if not self._step(step):
                return False
        self._finish()
        return True

    def _step(self, step: int) -> bool:
        algorithm = self._algorithm
        observation: Any = algorithm._last_obs
        seen = self._seen(observation)
        actions, to_env, *rest = self._act(seen, step)
        clipped_actions = as_sb3_gives(to_env, self._env.action_space)
        new_obs, rewards, dones, infos = self._env.step(clipped_actions)
        algorithm.num_timesteps += self._env.num_envs
        before = self._memory
        if before is not None:
            write_memory(self._buffer, step, before)
            *rest, self._memory = rest
        values, log_probs = rest or (None, None)
        shown: dict[str, Any] | None = None
        if self._needs_steps:
            if not isinstance(algorithm.action_space, spaces.Box):
                actions = np.array(actions, clipped_actions.dtype)
            actions, values, log_probs = np.array(actions), np.array(values), np.array(log_probs)  # writable copies
            chosen = {"actions": actions, "values": values, "log_probs": log_probs, "clipped_actions": clipped_actions}
            returned = {"new_obs": new_obs, "rewards": rewards, "dones": dones, "infos": infos, "n_steps": step}
            shown = self._locals(observation, chosen, returned)
        if not self._door.on_step(shown):
            return False
        self._end_episodes(step, np.asarray(dones).nonzero()[0].tolist(), infos, dones)
        self._store(step, observation, seen, actions, rewards)
        algorithm._last_obs, algorithm._last_episode_starts = new_obs, dones
        if before is not None and (self._syncs or step == self._n_steps - 1):
            algorithm._last_lstm_states = to_states(algorithm, self._memory)  # type: ignore[attr-defined]
        if values is not None:
            self._buffer.values[step], self._buffer.log_probs[step] = values, log_probs
        if self._syncs:
            self._refresh_actor()
        return True

    def _seen(self, observation: Arrays) -> Observation:
        """Return the policy's input: the observation, with action masks or the recurrent state if there are any."""
        algorithm = self._algorithm
        if algorithm._masks:
            masks = np.stack(self._env.env_method("action_masks"))
            self._shown["action_masks"] = masks
            return Masked(observation, masks.reshape(self._env.num_envs, -1))
        if self._memory is not None:
            return Recalled(observation, self._memory, np.asarray(algorithm._last_episode_starts, bool))
        return observation

    def _act(self, seen: Observation, step: int) -> Any:
        """Return actions, and the actions that environments take, followed by what else is computed in this step.

        That is: values and log-probabilities, unless they are computed later for all steps at once; and the next state
        of a recurrent policy.
        """
        if self._actor is not None:
            act = self._actor.act_and_evaluate if self._syncs else self._actor.act
            return act(seen, self._noise[step])
        if self._algorithm.use_sde and step % self._sde_sample_freq == 0:
            self._algorithm.policy.reset_noise(self._env.num_envs)
        return _act_in_torch(self._algorithm, seen)

    def _locals(self, observation: Any, chosen: dict[str, Any], returned: dict[str, Any]) -> dict[str, Any]:
        """Return SB3's locals when it calls the callback."""
        algorithm, shown = self._algorithm, self._shown
        shown.update(returned, actions=chosen["actions"])
        if not algorithm.MASKS:
            shown["clipped_actions"] = chosen["clipped_actions"]
        if self._memory is not None:
            starts = torch.tensor(algorithm._last_episode_starts, dtype=torch.float32, device=algorithm.device)
            shown.update(lstm_states=to_states(algorithm, self._memory), episode_starts=starts)
        shown["obs_tensor"] = obs_as_tensor(observation, algorithm.device)
        shown["values"] = torch.as_tensor(chosen["values"][:, None], device=algorithm.device)
        shown["log_probs"] = torch.as_tensor(chosen["log_probs"], device=algorithm.device)
        return shown

    def _end_episodes(self, step: int, ended: list[int], infos: Infos, dones: Any) -> None:
        # StepInfos have `episode` only where an episode ended, and are created when they are read.
        if ended or self._calls_hook or type(infos) is not StepInfos:
            self._algorithm._update_info_buffer(infos, dones)
        for index in ended:
            if infos[index].get("TimeLimit.truncated", False) and infos[index].get("terminal_observation") is not None:
                # A copy, because environments may reuse the memory before the rollout ends.
                last = jax.tree.map(np.array, infos[index]["terminal_observation"])
                memory = jax.tree.map(operator.itemgetter(index), self._memory)
                self._truncated.append((step, index, last, memory))

    def _store(self, step: int, observation: Any, seen: Any, actions: Any, rewards: Any) -> None:
        """Do what SB3's `buffer.add` does, except for values and log-probabilities."""
        buffer: Any = self._buffer
        if isinstance(observation, dict):
            for name, part in observation.items():
                buffer.observations[name][step] = part.reshape(buffer.observations[name].shape[1:])
        else:
            buffer.observations[step] = observation.reshape(buffer.observations.shape[1:])
        if isinstance(seen, Masked):
            buffer.action_masks[step] = seen.action_mask
        buffer.actions[step] = actions.reshape(self._env.num_envs, -1)
        buffer.rewards[step] = rewards
        buffer.episode_starts[step] = self._algorithm._last_episode_starts
        buffer.pos = step + 1

    def _refresh_actor(self) -> None:
        """Update what depends on the policy after user code, which may have changed it.

        Everything that was acted and evaluated so far belongs to the policy from before.
        """
        self._add_last_values()
        if self._actor is not None and not self._plan.acts_as_planned(self._algorithm.policy):
            self._actor = None
        elif self._actor is not None:
            self._actor.refresh()

    def _finish(self) -> None:
        algorithm, buffer = self._algorithm, self._buffer
        new_obs, dones = algorithm._last_obs, algorithm._last_episode_starts
        buffer.full = True
        self._add_last_values()

        def last_values() -> torch.Tensor:
            return values_in_torch(algorithm, obs_as_tensor(new_obs, algorithm.device), self._memory, dones)

        if self._actor is not None:
            evaluated = (buffer.values, buffer.log_probs) if self._syncs else None
            ends = np.concatenate([buffer.episode_starts[1:], np.asarray(dones, buffer.episode_starts.dtype)[None]])
            last = new_obs if self._memory is None else Recalled(new_obs, self._memory, np.asarray(dones, bool))
            results = self._actor.evaluate(read_rollout(buffer), evaluated, ends, last, buffer.gamma, buffer.gae_lambda)
            buffer.values[:], buffer.log_probs[:], buffer.advantages[:], buffer.returns[:] = results
        else:
            buffer.compute_returns_and_advantage(last_values=last_values(), dones=dones)
        end: dict[str, Any] | None = None
        if self._needs_steps and algorithm.SHOWS_ROLLOUT_END:
            end = {**self._shown, "n_steps": self._n_steps, "values": last_values()}
        self._door.on_rollout_end(end)

    def _add_last_values(self) -> None:
        """Add the discounted values of the last observations of truncated episodes to the rewards, each value once.

        PyTorch computes the values: there are few, and a function would be compiled for each number of them.
        """
        algorithm, truncated = self._algorithm, self._truncated
        for first in range(0, len(truncated), MOST_ROWS):
            steps, indices, observations, memories = zip(*truncated[first : first + MOST_ROWS])
            batch, memory = (jax.tree.map(lambda *leaves: np.stack(leaves), *each) for each in (observations, memories))
            tensors = algorithm.policy.obs_to_tensor(batch)[0]
            values = values_in_torch(algorithm, tensors, memory, np.zeros(len(steps), bool))
            self._buffer.rewards[steps, indices] += algorithm.gamma * values.flatten().cpu().numpy()
        truncated.clear()


def _act_in_torch(algorithm: OnPolicy, observation: Any) -> Any:
    further: dict[str, Any] = {}
    if isinstance(observation, Masked):
        further = {"action_masks": observation.action_mask}
    elif isinstance(observation, Recalled):
        starts = torch.tensor(observation.episode_start, dtype=torch.float32, device=algorithm.device)
        further = {"lstm_states": to_states(algorithm, observation.memory), "episode_starts": starts}
    observation = observation.observation if further else observation
    with torch.no_grad():
        *results, last = algorithm.policy(obs_as_tensor(observation, algorithm.device), **further)
    remembered = (of_states(last),) if "lstm_states" in further else ()
    actions, values, log_probs = (result.cpu().numpy() for result in (*results, *(() if remembered else (last,))))
    return actions, unscaled(algorithm.policy, actions), values.flatten(), log_probs, *remembered


def values_in_torch(algorithm: OnPolicy, observation: Any, memory: Memory | None, starts: np.ndarray) -> torch.Tensor:
    """Return the values that PyTorch's policy computes.

    Args:
      observation: tensors.
      memory, starts: of a recurrent policy, its state and where episodes begin.
    """
    further: tuple[Any, ...] = ()
    if memory is not None:
        begins = torch.tensor(starts, dtype=torch.float32, device=algorithm.device)
        further = to_states(algorithm, memory).vf, begins
    with torch.no_grad():
        values: torch.Tensor = algorithm.policy.predict_values(observation, *further)
    return values
