"""Compiled `predict`: a policy as one small compiled function, for NumPy arrays, tensors and JAX columns.

Tensors and JAX arrays are passed on without a copy to NumPy in between. PyTorch predicts with weights or tensors on a
GPU: calling a compiled function takes longer there than a whole forward pass in PyTorch (docs/gpu.md).
"""

from __future__ import annotations

import collections
from concurrent.futures import Future, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space

from bridge.contrib import is_recurrent
from bridge.dlpack import to_jax, to_torch
from bridge.engine.acting import Actor, NoiseSource, draws_nothing, is_where_jax_computes
from bridge.engine.choices import is_slower_compiled, placement_of_acting, policy_is_on_gpu
from bridge.engine.lstm_state import Memory
from bridge.engine.runtime import compile_meanwhile
from bridge.errors import NotCompilable
from bridge.observations import map_parts
from bridge.replay.columns import as_numpy
from bridge.sb3 import Space
from bridge.translate.policies.exported_network import keeps_changing
from bridge.translate.policies.off_policy import acting_part, acting_tensors, export_acting
from bridge.translate.user_modules.snapshot import Snapshot
from bridge.vec_env.actions import as_sb3_gives
from jaxenvs.compilation import is_usable, require_usable
from jaxenvs.compilation.default_device import accelerator, on
from jaxenvs.learn import Masked, Recalled
from jaxenvs.learn.interfaces import Arrays, Observation, unmasked
from jaxenvs.wrappers.action_masker import mask_size

# The first 100 calls with observations of one shape run in PyTorch. After that compiling is worthwhile: it takes as
# long as some hundred calls. It runs in a thread beside the next 100 calls. Both numbers are fixed rather than
# measured, so that a script that seeds PyTorch gets the same actions every time.
CALLS_BEFORE_COMPILING = 100

# The arrays that PyTorch and compiled functions both take. All others are left to SB3's code, which refuses them.
NUMBERS = frozenset(map(np.dtype, "?bBhHiIlLqQefd"))


class Predictor:
    """Implementation of `predict` for one policy: compiled after some calls, and PyTorch's code until then.

    Args:
      policy: SB3's.
      compiles: whether to compile, if the policy has a translation.
      asked_device: the model's.
    """

    def __init__(self, policy: BasePolicy, compiles: bool, asked_device: str = "auto") -> None:
        self._policy = policy
        self._snapshot = Snapshot(policy, [acting_part(policy)])
        self._actor = _actor_of(policy, self._snapshot, asked_device) if compiles else None
        self._asked_device, self._chooses = asked_device, self._actor is not None and accelerator() is not None
        self._actors: dict[int, Actor] = {}  # by the number of observations, if that decides where they act
        self._calls: collections.Counter[object] = collections.Counter()
        self._compiling: dict[object, Future[object]] = {}
        self._compiled: set[object] = set()
        self._draw: NoiseSource | None = None
        if self._actor is not None and not draws_nothing(self._actor.network):
            self._draw = NoiseSource(self._actor.network)
        space = policy.observation_space
        is_flat = isinstance(space, spaces.Box) and not is_image_space(space)
        self._flat_shape = space.shape if is_flat else None
        self._is_recurrent = is_recurrent(policy)
        self._mask_size = mask_size(policy.action_space)
        # On the device once, because copying them there waits for it.
        box = policy.action_space if isinstance(policy.action_space, spaces.Box) else None
        self._bounds = [torch.tensor(each, device=policy.device) for each in ((box.low, box.high) if box else ())]

    def is_current(self, policy: BasePolicy) -> bool:
        """Return whether this predictor was made for the policy as it is now, whatever its weights are."""
        works = self._actor is None or is_usable()  # False after a fork
        return works and policy is self._policy and self._snapshot.is_current(learns=False)

    def predict(
        self,
        observation: object,
        deterministic: bool,
        state: object = None,
        episode_start: object = None,
        action_masks: object = None,
    ) -> tuple[Any, object] | None:
        """Return the actions for one observation or a batch, and the next state; None if SB3's code is needed.

        SB3's code is needed until the function is compiled, and where it is to raise an error.

        Args:
          observation: as SB3 takes it; or tensors or JAX arrays instead of NumPy's. The actions then have the same type
            and device.
          deterministic: return the most likely actions instead of drawing them.
          state, episode_start: of recurrent policies, as in sb3-contrib.
          action_masks: for policies that take them, as MaskablePPO's.

        Raises:
          ValueError: tensors or JAX arrays do not have the shape of the observation space, or the policy returned NaN.
        """
        # Every microsecond counts here: a step of an environment takes about ten.
        further, deterministic = (state, episode_start, action_masks), bool(deterministic)
        if type(observation) is not np.ndarray:
            leaves = list(observation.values()) if isinstance(observation, dict) else [observation]
            for array_type in (torch.Tensor, jax.Array):
                if leaves and all(isinstance(leaf, array_type) for leaf in leaves):
                    return self._predict_tensors(observation, array_type is jax.Array, deterministic, *further)
            if isinstance(observation, tuple):  # nearly always what `env.reset()` of Gymnasium returns
                return None
            shapes: tuple[object, ...] = tuple(getattr(leaf, "shape", None) for leaf in leaves)
        else:
            shapes = observation.shape
        key = shapes, deterministic, action_masks is not None
        if key not in self._compiled and not self._compile(observation, key, further):
            return None
        batch, is_batch = self._batch_of(observation)
        if (seen := self._seen(batch, *further)) is None:
            return None
        function, *inputs = self._arguments(seen, _length(batch), deterministic)
        action, was_nan, memory = function(*inputs)
        if np.asarray(was_nan):
            return None
        action = as_sb3_gives(action, self._policy.action_space)
        return (action if is_batch else action.squeeze(axis=0)), self._state_after(state, memory)

    def _seen(self, batch: Arrays, state: Any, episode_start: object, action_masks: object) -> Observation | None:
        """Return the policy's input: a batch of observations or tensors, with action masks or the recurrent state.

        None: the other arguments have such shapes or types that SB3's code must refuse them, or can use them.
        """
        num = _length(batch)
        seen: Arrays | Masked = batch
        if action_masks is not None:
            masks = _as_numbers(action_masks)
            if masks is None or masks.size != num * (self._mask_size or 0):
                return None
            seen = Masked(batch, masks.astype(bool).reshape(num, -1))
        if not self._is_recurrent:
            return seen
        policy: Any = self._policy
        layers, _, size = policy.lstm_hidden_state_shape
        parts: list[Any] = [np.zeros((layers, num, size))] * 2
        if state is not None:
            try:
                parts = [_as_numbers(state[0]), _as_numbers(state[1])]
            except (TypeError, LookupError):
                return None
        starts = np.zeros(num, bool) if episode_start is None else _as_numbers(episode_start)
        if any(part is None or part.shape != (layers, num, size) for part in parts):
            return None
        # For one observation `episode_start` may also be a bool, such as Gymnasium's `terminated or truncated`.
        if starts is None or starts.size != num or not (starts.dtype == bool or np.isin(starts, (0, 1)).all()):
            return None
        memory = tuple(part.astype(np.float32, copy=False).swapaxes(0, 1) for part in parts)
        return Recalled(seen, {"pi": memory, "vf": memory}, starts.astype(bool).reshape(num))

    @staticmethod
    def _state_after(state: object, memory: Memory | None) -> object:
        """Return the next state as sb3-contrib does. A policy without recurrent state gets back what was passed."""
        return state if memory is None else tuple(np.array(part).swapaxes(0, 1) for part in memory["pi"])

    def _compile(self, observation: object, key: tuple[object, bool, bool], further: tuple[object, ...]) -> bool:
        """Return whether the compiled function for a key is ready. Start compiling it after enough calls.

        Args:
          key: the shapes of the observations, `deterministic`, and whether there are action masks.
          further: `state`, `episode_start` and `action_masks`.
        """
        _, deterministic, _ = key
        self._calls[key] += 1
        if self._calls[key] <= CALLS_BEFORE_COMPILING or not self._can_act(deterministic):
            return False
        if key not in self._compiling:
            batch, _ = self._batch_of(observation)
            if (seen := self._seen(batch, *further)) is None:
                return False
            state = torch.get_rng_state()
            self._compiling[key] = compile_meanwhile(*self._arguments(seen, _length(batch), deterministic))
            torch.set_rng_state(state)  # the noise above is only an example
        if self._calls[key] <= 2 * CALLS_BEFORE_COMPILING:
            return False
        wait([self._compiling.pop(key)])
        self._compiled.add(key)
        return True

    def _batch_of(self, observation: Any) -> tuple[Arrays, bool]:
        """Return NumPy arrays with a leading axis, and whether the observation had that axis.

        Raises:
          ValueError, TypeError: SB3's error, for another shape or for what are no numbers.
        """
        shape = self._flat_shape
        if shape is not None and type(observation) is np.ndarray and observation.dtype in NUMBERS:
            if observation.shape == shape:
                return observation[None], False
            if observation.shape[1:] == shape:
                return observation, True
        batch, is_batch = self._policy.obs_to_tensor(observation)
        return map_parts(lambda part: part.cpu().numpy(), batch), is_batch

    def _can_act(self, deterministic: bool) -> bool:
        return self._actor is not None and (deterministic or self._actor.network.exploration is None)

    def _arguments(self, seen: Observation, num: int, deterministic: bool) -> tuple[Any, object, object, object]:
        """Return the compiled function and its arguments, for `num` observations."""
        assert self._actor is not None
        actor = self._actor_for(num) if self._chooses else self._actor
        actor.refresh()
        noise = None if deterministic or self._draw is None else self._draw(num)
        return actor.compiled.predict, actor.params, actor.network.from_host(seen), noise

    def _actor_for(self, num: int) -> Actor:
        """Return the actor for `num` observations, on the CPU or on an accelerator."""
        if num not in self._actors:
            assert self._actor is not None
            with on(placement_of_acting(self._asked_device, self._policy, num).device):
                network = self._actor.network
                self._actors[num] = Actor(network, acting_tensors(self._policy, network))
        return self._actors[num]

    def _predict_tensors(
        self, observation: Any, is_jax: bool, deterministic: bool, state: Any, episode_start: Any, action_masks: object
    ) -> tuple[Any, object]:
        first = next(iter(observation.values())) if isinstance(observation, dict) else observation
        batch, is_batch = _as_batch(observation, self._policy.observation_space)
        compiles = self._can_act(deterministic) and (is_jax or first.device.type == "cpu")
        if compiles:
            batch = batch if is_jax else map_parts(_for_jax, batch)
        else:
            batch = map_parts(lambda part: (to_torch(part) if is_jax else part).to(self._policy.device), batch)
        action: Any
        seen = self._seen(batch, state, episode_start, action_masks)
        if seen is None:
            masks = {} if action_masks is None else {"action_masks": action_masks}
            on_host = map_parts(as_numpy, batch)
            action, state = self._policy.predict(on_host, state, episode_start, deterministic, **masks)
            action = jnp.asarray(action) if is_jax else torch.as_tensor(action)
        elif compiles:
            function, *inputs = self._arguments(seen, _length(batch), deterministic)
            action, was_nan, memory = function(*inputs)
            state = self._state_after(state, memory)
            if was_nan:
                raise ValueError(
                    "The policy's action distribution is NaN, because its weights or the observation are NaN."
                )
            action = action if is_jax else to_torch(action)
        else:
            action, state = self._by_pytorch(batch, deterministic, state, seen)
            action = to_jax(action if is_where_jax_computes(action) else action.cpu()) if is_jax else action
        if is_jax:
            action = jax.device_put(action, first.device)
        else:
            is_index = isinstance(self._policy.action_space, spaces.Discrete | spaces.MultiDiscrete)
            action = action.to(first.device, torch.int64 if is_index else torch.float32)
        return (action if is_batch else action[0]), state

    def _by_pytorch(self, batch: Any, deterministic: bool, state: object, seen: object) -> tuple[torch.Tensor, object]:
        policy, space = self._policy, self._policy.action_space
        policy.set_training_mode(False)
        with torch.no_grad():
            seen, mask = unmasked(seen)
            further: dict[str, object] = {} if mask is None else {"action_masks": mask}
            if isinstance(seen, Recalled):
                memory = (torch.tensor(part.swapaxes(0, 1), device=policy.device) for part in seen.memory["pi"])
                starts = torch.tensor(seen.episode_start, dtype=torch.float32, device=policy.device)
                further |= {"lstm_states": tuple(memory), "episode_starts": starts}
            action = policy._predict(batch, deterministic=deterministic, **further)
            if isinstance(seen, Recalled):
                action, after = action
                state = tuple(part.cpu().numpy() for part in after)
            action = action.reshape(-1, *(space.shape or ()))
        if not isinstance(space, spaces.Box):
            return action, state
        low, high = (bound.to(action.device) for bound in self._bounds)
        if policy.squash_output:
            return low + 0.5 * (action + 1) * (high - low), state
        return torch.clamp(action, low, high), state


def _actor_of(policy: BasePolicy, snapshot: Snapshot, asked_device: str) -> Actor | None:
    """Return the policy as compiled functions; None if it has no translation, or if PyTorch is faster."""
    try:
        require_usable()
        if policy_is_on_gpu(policy):  # a call would copy the weights, or wait for the GPU longer than PyTorch
            return None
        with on(placement_of_acting(asked_device, policy, 1).device):
            if is_slower_compiled(policy) or keeps_changing(policy):
                return None
            snapshot.require_pure()
            network = export_acting(policy)
            return Actor(network, acting_tensors(policy, network))
    except (NotCompilable, RuntimeError):
        return None


def _length(batch: Arrays) -> int:
    return len(batch) if isinstance(batch, np.ndarray) else len(jax.tree.leaves(batch)[0])


def _as_numbers(value: object) -> np.ndarray | None:
    """Return what was passed as an array; None if it is not one of numbers, or if PyTorch reads it in another way."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array if array.dtype in NUMBERS else None


def _for_jax(tensor: torch.Tensor) -> jax.Array | np.ndarray:
    if tensor.dtype in (torch.int64, torch.uint64):  # `to_jax` would narrow these to 32 bits
        return tensor.cpu().numpy()
    array: jax.Array = to_jax(tensor if is_where_jax_computes(tensor) else tensor.cpu())
    return array


def _as_batch(observation: Any, space: Space) -> tuple[Any, bool]:
    """Return tensors or JAX arrays with a leading axis and channels first, and whether they had the leading axis.

    Raises:
      ValueError: they do not have the shape of the space.
    """
    if isinstance(observation, dict):
        if not isinstance(space, spaces.Dict) or observation.keys() != space.keys():
            raise ValueError(
                f"observation must fit {space}, got a dict with the keys {', '.join(map(repr, observation))}."
            )
        parts = {name: _as_batch(part, space[name]) for name, part in observation.items()}
        return {name: part for name, (part, _) in parts.items()}, all(is_batch for _, is_batch in parts.values())
    shape, expected = tuple(observation.shape), tuple(space.shape or ())
    channels_last = (*expected[1:], expected[0]) if len(expected) == 3 else expected
    for wanted in (expected, channels_last):
        if shape in (wanted, shape[:1] + wanted):
            is_batch = len(shape) > len(wanted)
            batch = observation if is_batch else observation[None]
            if wanted is not expected:
                batch = batch.permute(0, 3, 1, 2) if isinstance(batch, torch.Tensor) else batch.transpose(0, 3, 1, 2)
            return batch, is_batch
    raise ValueError(f"observation must have the shape {expected} or (n, *{expected}), got {shape}.")
