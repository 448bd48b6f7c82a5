"""Collecting in environments on the host while no callback looks: SB3's loop, with compiled acting and evaluation."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from bridge.engine.acting import Actor
from bridge.engine.callbacks.known import needs_rollouts, shows_ends
from bridge.engine.lstm_state import Memory, keep_memory, of_states, read_memory, to_states
from bridge.engine.on_policy.device_arrays import DeviceArrays
from bridge.engine.plan import Plan
from bridge.engine.rollout_buffer import read_rollout, write_memory
from bridge.engine.session import Session
from bridge.engine.user_code.overrides import BETWEEN_ROLLOUTS, keeps_observations, run_no_user_code
from bridge.host_env.gym_vec_env import GymVecEnv
from bridge.host_env.step_infos import StepInfos
from bridge.sb3 import Infos, OnPolicy
from bridge.vec_env.actions import as_sb3_gives
from jaxenvs.learn import Masked, Recalled, Rollout
from jaxenvs.learn.interfaces import Arrays, Observation, unmasked

ValuesOf = Callable[[Arrays, Memory | None, np.ndarray], np.ndarray]

# The last observations of truncated episodes are evaluated in batches of at most this many.
MOST_ROWS = 256
# Environments of this process may change weights in any step. Larger vectors are not compared after each of them.
MOST_WATCHED = 2**17


def can_evaluate_later(plan: Plan, env: VecEnv, stays: bool) -> bool:
    """Return whether values may be computed for all steps at once, after the rollout.

    Not if code of the user is called in the steps, or if environments may overwrite their observations.
    """
    assert plan.params is not None
    # Comparing weights on a GPU would bring them to the host in each step, unless the rollout is there too.
    is_cheap = stays or (plan.params.length <= MOST_WATCHED and plan.params.tensors[0].device.type == "cpu")
    return (
        (is_cheap or run_no_user_code(env)) and keeps_observations(env) and BETWEEN_ROLLOUTS.issuperset(plan.user_code)
    )


class HostRollout:
    """Rollout in environments on the host: what `OnPolicyAlgorithm.collect_rollouts` does, with compiled functions.

    The rollout buffer ends with the same contents. Values and log-probabilities are computed for all steps at once,
    with the weights that acted.

    Args:
      plan: its actor acts, as long as it still is the policy, with the same weights: code of the environments
        may change either. If it does, PyTorch's policy acts in the rest of the rollout.
      env, callback: called as by SB3. The callback is shown at most the ends of episodes.
      buffer: is overwritten.
      stays: whether observations and actions stay on the device of `env`, as long as compiled functions act.
    """

    def __init__(
        self,
        algorithm: OnPolicy,
        session: Session,
        plan: Plan,
        env: VecEnv,
        callback: BaseCallback,
        buffer: RolloutBuffer,
        stays: bool,
    ) -> None:
        self._algorithm, self._session, self._plan, self._env = algorithm, session, plan, env
        self._callback, self._buffer = callback, buffer
        self._sde_sample_freq, self._n_steps = algorithm._steps_of_same_noise(), buffer.buffer_size
        self._stays = stays
        self._arrays: DeviceArrays | None = None
        self._runs_user_code = session.runs_user_code
        # The callback is shown the steps in which episodes ended, and the step after each.
        self._shows_ends, self._is_quiet = shows_ends(callback), False
        # Last observations of truncated episodes: step, environment, discount, observation, recurrent state.
        self._truncated: list[tuple[int, int, float, Arrays, Memory | None]] = []

    def run(self, has_begun: bool = False) -> bool:
        """Collect the rollout.

        Args:
          has_begun: whether the callback's `on_rollout_start` has been called.

        Returns:
          False as soon as the callback stops training.

        Raises:
          ValueError: the policy returned NaN. The environments are where they were at that step.
        """
        algorithm, num_envs, session = self._algorithm, self._env.num_envs, self._session
        if algorithm.policy.training:
            algorithm.policy.set_training_mode(False)
        self._buffer.reset()
        if algorithm.use_sde:
            # So that `predict`, which draws noise in PyTorch, uses the present standard deviation.
            algorithm.policy.reset_noise(num_envs)
        if not has_begun and needs_rollouts(self._callback):
            self._callback.on_rollout_start()
            session.forget()
        self._memory: Any = read_memory(algorithm)
        # The actor, and the weights with which it acts. None: PyTorch acts.
        self._actor: Actor | None = None
        plan = session.current_plan(algorithm, self._env)
        if plan is self._plan and plan.actor is not None:
            assert plan.params is not None
            self._actor, self._weights = plan.actor, np.array(plan.params.read())
            self._actor.refresh()
            if self._stays:
                self._arrays = DeviceArrays(cast(GymVecEnv, self._env), self._buffer, plan.params)
            before = torch.get_rng_state()
            self._noise = self._actor.draw_noise(num_envs, self._n_steps, self._sde_sample_freq)
            self._generator = before, torch.get_rng_state()
        try:
            for step in range(self._n_steps):
                if not self._step(step):
                    return False
            self._finish()
        finally:
            self._leave_device()
        return True

    def _step(self, step: int) -> bool:
        algorithm = self._algorithm
        observation: Arrays = algorithm._last_obs
        seen = self._seen(observation)
        actions, to_env, *rest = self._act(seen, step)
        if self._arrays is None:
            new_obs, rewards, dones, infos = self._env.step(as_sb3_gives(to_env, self._env.action_space))
        else:
            new_obs, rewards, dones, infos = self._arrays.step(step, actions, to_env)
        algorithm.num_timesteps += self._env.num_envs
        before = self._memory
        if before is not None:
            write_memory(self._buffer, step, before)
            *rest, self._memory = rest
        ended = np.asarray(dones).nonzero()[0].tolist()
        if self._shows_ends and (ended or not self._is_quiet):
            self._is_quiet = not ended
            self._callback.update_locals({"self": algorithm, "dones": dones, "infos": infos})
        if not self._callback.on_step():
            return False
        self._end_episodes(step, ended, infos, dones)
        self._store(step, observation, seen, actions, rewards)
        algorithm._last_obs, algorithm._last_episode_starts = new_obs, dones
        if before is not None and step == self._n_steps - 1:
            keep_memory(algorithm, self._memory)
        if rest:  # PyTorch has acted
            self._buffer.values[step], self._buffer.log_probs[step] = rest
            self._add_last_values()
        elif self._runs_user_code or (self._shows_ends and ended):
            self._watch(step)
        return True

    def _watch(self, step: int) -> None:
        """Evaluate what the actor did until now, and leave the rest of the rollout to PyTorch, if the policy changed.

        What changed in this step, changed after its action.
        """
        plan, algorithm = self._plan, self._algorithm
        assert plan.params is not None
        assert self._actor is not None
        arrays, params = self._arrays, plan.params
        is_same = same_numbers(params.read(), self._weights) if arrays is None else arrays.has_weights(params)
        if is_same and plan.acts_as_planned(algorithm.policy):
            return
        rollout, actor = self._rollout(), self._actor
        evaluated = actor.evaluate_steps(rollout.observation, rollout.action, self._weights)
        self._buffer.values[: step + 1], self._buffer.log_probs[: step + 1] = (each[: step + 1] for each in evaluated)

        def values_before(batch: Arrays, memory: Memory | None, starts: np.ndarray) -> np.ndarray:
            size = len(starts)
            at = np.arange(MOST_ROWS) % size  # of one size, for which a function is compiled once
            batch, memory, starts = jax.tree.map(lambda leaf: leaf[at], (batch, memory, starts))
            seen = actor.network.from_host(batch if memory is None else Recalled(batch, memory, starts))
            rows = jax.tree.map(lambda leaf: leaf[None], seen)  # as a rollout of one step
            actions = np.zeros((1, len(starts), *rollout.action.shape[2:]), rollout.action.dtype)
            values: np.ndarray = actor.evaluate_steps(rows, actions, self._weights)[0][0, :size]
            return values

        self._add_last_values(step, values_before)
        before, after = self._generator
        if torch.equal(torch.get_rng_state(), after):  # else code of the user has drawn or seeded
            torch.set_rng_state(before)
            self._actor.draw_noise(self._env.num_envs, step + 1, self._sde_sample_freq)
        self._actor = None
        self._leave_device()
        self._add_last_values()
        if self._memory is not None:
            keep_memory(algorithm, self._memory)

    def _seen(self, observation: Arrays) -> Observation:
        """Return the policy's input: the observation, with action masks or the recurrent state if there are any."""
        algorithm = self._algorithm
        if self._arrays is not None:
            return self._arrays.to_policy(observation, self._buffer.pos)
        seen: Arrays | Masked = observation
        if algorithm._masks:
            masks = np.stack(self._env.env_method("action_masks"))
            seen = Masked(observation, masks.reshape(self._env.num_envs, -1))
        if self._memory is not None:
            return Recalled(seen, self._memory, np.asarray(algorithm._last_episode_starts, bool))
        return seen

    def _act(self, seen: Observation, step: int) -> Any:
        """Return actions, and the actions that environments take, followed by what else is computed in this step.

        That is: values and log-probabilities, if PyTorch acts; and the next state of a recurrent policy.
        """
        if self._actor is not None:
            act = self._actor.act if self._arrays is None else self._actor.act_on_device
            return act(seen, None if self._noise is None else self._noise[step])
        if self._algorithm.use_sde and step % self._sde_sample_freq == 0:
            self._algorithm.policy.reset_noise(self._env.num_envs)
        return _act_in_torch(self._algorithm, seen)

    def _end_episodes(self, step: int, ended: list[int], infos: Infos, dones: np.ndarray) -> None:
        # StepInfos have `episode` only where an episode ended, and are created when they are read. A wrapper of the
        # user's may have changed the dones.
        if type(infos) is StepInfos and infos.ended == ended:
            ends = infos.at_ends()
            self._algorithm._update_info_buffer(ends, np.ones(len(ends), bool))
        else:
            self._algorithm._update_info_buffer(infos, dones)
            ends = [infos[index] for index in ended]
        for index, info in zip(ended, ends):
            if info.get("TimeLimit.truncated", False) and info.get("terminal_observation") is not None:
                # A copy, because environments may reuse the memory before the rollout ends.
                last = jax.tree.map(np.array, info["terminal_observation"])
                memory = jax.tree.map(operator.itemgetter(index), self._memory)
                self._truncated.append((step, index, self._algorithm.gamma, last, memory))

    def _store(self, step: int, observation: Any, seen: Observation, actions: np.ndarray, rewards: np.ndarray) -> None:
        """Do what SB3's `buffer.add` does, except for values and log-probabilities."""
        buffer: Any = self._buffer
        if self._arrays is not None:
            pass  # it has stored them
        elif isinstance(observation, dict):
            for name, part in observation.items():
                buffer.observations[name][step] = part.reshape(buffer.observations[name].shape[1:])
        else:
            buffer.observations[step] = observation.reshape(buffer.observations.shape[1:])
        if (mask := unmasked(seen)[1]) is not None:
            buffer.action_masks[step] = mask
        if self._arrays is None:
            buffer.actions[step] = actions.reshape(self._env.num_envs, -1)
        buffer.rewards[step] = rewards
        buffer.episode_starts[step] = self._algorithm._last_episode_starts
        buffer.pos = step + 1

    def _rollout(self) -> Rollout:
        return read_rollout(self._buffer) if self._arrays is None else self._arrays.read()

    def _leave_device(self) -> None:
        """Let SB3's attributes have what is on the device, unless the next update reads it there."""
        arrays, self._arrays = self._arrays, None
        if arrays is None:
            return
        if self._session.device_arrays is not arrays:
            arrays.write_back()
        self._algorithm._last_obs = cast(GymVecEnv, self._env).as_arrays(self._algorithm._last_obs)

    def _finish(self) -> None:
        algorithm, buffer = self._algorithm, self._buffer
        new_obs, dones = algorithm._last_obs, algorithm._last_episode_starts
        buffer.full = True
        self._add_last_values()
        if self._actor is not None:
            ends = np.concatenate([buffer.episode_starts[1:], np.asarray(dones, buffer.episode_starts.dtype)[None]])
            last = new_obs if self._memory is None else Recalled(new_obs, self._memory, np.asarray(dones, bool))
            last = last if self._arrays is None else self._arrays.to_policy(last)
            results = self._actor.evaluate(self._rollout(), ends, last, buffer.gamma, buffer.gae_lambda)
            buffer.values[:], buffer.log_probs[:], buffer.advantages[:], buffer.returns[:] = results
        else:
            observation = obs_as_tensor(new_obs, algorithm.device)
            values = values_in_torch(algorithm, observation, self._memory, dones)
            buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        if self._arrays is not None:
            self._session.keep(self._arrays, self._callback)
            self._leave_device()
        if needs_rollouts(self._callback):
            self._callback.on_rollout_end()
        if self._runs_user_code or self._shows_ends:
            self._session.forget()

    def _values_now(self, batch: Arrays, memory: Memory | None, starts: np.ndarray) -> np.ndarray:
        # By PyTorch: there are few values, and a function would be compiled for each number of them.
        tensors = self._algorithm.policy.obs_to_tensor(batch)[0]
        return values_in_torch(self._algorithm, tensors, memory, starts).flatten().cpu().numpy()

    def _add_last_values(self, before: int | None = None, values_of: ValuesOf | None = None) -> None:
        """Add the discounted values of the last observations of truncated episodes to the rewards, each value once.

        Args:
          before: only for episodes that were truncated before this step.
          values_of: by default, the policy as it is now.
        """
        due = [each for each in self._truncated if before is None or each[0] < before]
        for first in range(0, len(due), MOST_ROWS):
            steps, indices, discounts, observations, memories = zip(*due[first : first + MOST_ROWS])
            batch, memory = (jax.tree.map(lambda *leaves: np.stack(leaves), *each) for each in (observations, memories))
            values = (values_of or self._values_now)(batch, memory, np.zeros(len(steps), bool))
            self._buffer.rewards[steps, indices] += np.array(discounts, values.dtype) * values
        self._truncated = self._truncated[len(due) :]


def _act_in_torch(algorithm: OnPolicy, observation: Any) -> tuple[object, ...]:
    policy, (observation, mask) = algorithm.policy, unmasked(observation)
    further: dict[str, object] = {} if mask is None else {"action_masks": mask}
    if isinstance(observation, Recalled):
        starts = torch.tensor(observation.episode_start, dtype=torch.float32, device=algorithm.device)
        further |= {"lstm_states": to_states(algorithm, observation.memory), "episode_starts": starts}
        observation = observation.observation
    with torch.no_grad():
        *results, last = policy(obs_as_tensor(observation, algorithm.device), **further)
    remembered = (of_states(last),) if "lstm_states" in further else ()
    actions, values, log_probs = (result.cpu().numpy() for result in (*results, *(() if remembered else (last,))))
    is_squashed = isinstance(policy.action_space, spaces.Box) and policy.squash_output
    to_env = policy.unscale_action(actions) if is_squashed else actions
    return actions, to_env, values.flatten(), log_probs, *remembered


def values_in_torch(algorithm: OnPolicy, observation: Any, memory: Memory | None, starts: np.ndarray) -> torch.Tensor:
    """Return the values that PyTorch's policy computes.

    Args:
      observation: tensors.
      memory, starts: of a recurrent policy, its state and where episodes begin.
    """
    further: tuple[object, ...] = ()
    if memory is not None:
        begins = torch.tensor(starts, dtype=torch.float32, device=algorithm.device)
        further = to_states(algorithm, memory).vf, begins
    with torch.no_grad():
        values: torch.Tensor = algorithm.policy.predict_values(observation, *further)
    return values


def same_numbers(these: np.ndarray, those: np.ndarray) -> bool:
    """Return whether two vectors are equal, bit for bit."""
    kind = f"u{these.itemsize}"  # as integers, because NaN is not equal to itself
    return bool((these.view(kind) == those.view(kind)).all())
