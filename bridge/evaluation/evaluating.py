"""evaluate: thousands of episodes of a Stable-Baselines3 policy at once, in one compiled function."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, TypeGuard

import gymnasium
import jax
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize, VecTransposeImage

import jaxenvs
from bridge.algorithms.common.compiled_algorithm import CompiledAlgorithm
from bridge.algorithms.specs import SPECS
from bridge.configuration import with_own_settings
from bridge.contrib import is_maskable
from bridge.engine.choices import placement_of_episodes
from bridge.engine.user_code.overrides import inner_environments
from bridge.environment_ids import is_jax_id
from bridge.errors import NotCompilable
from bridge.evaluation.compiled_episodes import Network, compiled_function
from bridge.evaluation.on_host import (
    evaluate_on_host,
    missing_statistics,
    warn_without_statistics,
    with_statistics,
)
from bridge.originals import has_own_methods
from bridge.sb3 import AnyEnv, Space
from bridge.self_play.policy_pools import with_opponent
from bridge.translate.policies.off_policy import acting_tensors, export_acting
from bridge.translate.policies.off_policy_networks import ExportedQNetwork
from bridge.translate.pytorch.modules import read_parameters
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.wrappers import WrappedEnv
from bridge.wrappers.vec_normalize import CompiledNormalize
from jaxenvs import AutoresetMode, Environment, Evaluation, VectorEnv, arguments
from jaxenvs.compilation import require_usable
from jaxenvs.compilation.default_device import here, on
from jaxenvs.learn import ActionHead
from jaxenvs.rollout import NO_LIMIT, require_ends
from jaxenvs.wrappers.action_masker import require_action_masks
from jaxenvs.wrappers.multi_agent.agents import Agents, vectorize

EVALUATE_POLICY = "stable_baselines3.common.evaluation.evaluate_policy"
# More would take days, or exceed memory.
MOST_EPISODES, MOST_ENVS = 10**7, 2**20


@with_own_settings
def evaluate(
    model: BaseAlgorithm | BasePolicy,
    env: str | Environment[Any] | VectorEnv | VecEnv | gymnasium.Env[Any, Any],
    n_episodes: int,
    *,
    deterministic: bool = True,
    seed: int = 0,
    max_steps: int | None = None,
    max_envs: int = 4096,
) -> Evaluation:
    """Run whole episodes of a policy, many at once, without changing the model or `env`.

    Use it instead of SB3's `evaluate_policy` for JAX environments. Every episode that starts is counted, however long
    it gets, so short episodes weigh no more than long ones.

    Observations are normalized with the statistics of a VecNormalize in `env`; if there is none, of the one in which
    the model trains (`model.get_vec_normalize_env()`), if any. A model of ours that was loaded without its environments
    has no statistics, but records that it was trained on normalized observations, and then evaluate warns.

    A Gymnasium environment, and any VecEnv except a JaxVecEnv, is stepped on the host by SB3's `evaluate_policy` and
    the model's `predict`; `terminated` is then the opposite of `truncated`, because SB3 reports no more.

    Args:
      model: PPO, A2C, RecurrentPPO (which remembers within episodes), DQN, QRDQN, SAC, TQC, CrossQ, TD3, DDPG, another
        SB3 algorithm with a policy of one of these, or MaskablePPO (which takes only legal actions), compiled or
        not; or such a policy. On the host, any SB3 model.
      env: an id of jaxenvs or Gymnasium, an Environment, a VectorEnv, or a JaxVecEnv, also in wrappers that can be
        compiled (docs/wrappers.md), which are copied; or environments on the host. Only the parameters of JAX
        environments are used. If these differ, episode i has the parameters of environment i modulo their number.
      n_episodes: the number of episodes. If several agents act at once, each agent's episode counts.
      deterministic: whether to take the most likely actions. Otherwise actions are sampled, with state-dependent
        exploration from one noise matrix an episode; DQN and QRDQN explore at the model's `exploration_rate`.
      seed: episode i is the first of environment i of a JaxVecEnv with this seed, with `jax.random.key(seed + i)`.
      max_steps: longer episodes are truncated after this number of steps. Required without a TimeLimit.
      max_envs: the most episodes that run at once; the others follow. It affects only time and memory. In a custom
        wrapper without `any_num_envs`, as many run at once as `env` has environments.

    Raises:
      NotCompilable: the policy, or a wrapper of `env`, has no translation to JAX.
      TypeError, UnknownEnvironment: `model` or `env` is not one of these, or there is no such id.
      ValueError: the policy does not fit the spaces, or is MaskablePPO's and `env` has no action masks; nothing limits
        the episodes; a number is not positive; or weights or statistics are NaN.
    """
    require_usable()
    n_episodes = arguments.positive_int("n_episodes", n_episodes, MOST_EPISODES)
    max_envs = arguments.positive_int("max_envs", max_envs, MOST_ENVS)
    if max_steps is not None:
        max_steps = arguments.positive_int("max_steps", max_steps)
    seed = arguments.integer("seed", seed, -(2**63), None, "an int")
    arguments.boolean("deterministic", deterministic)
    policy = _policy_of(model)
    if isinstance(env, str) and env in gymnasium.registry and not is_jax_id(env):
        env = gymnasium.make(env)
    if _is_on_host(env):
        return evaluate_on_host(model, env, n_episodes, deterministic, seed, max_steps)
    try:
        _require_known_predict(model)
        network = export_acting(policy)
        venv, stack = _environments(env)
        stack = _as_the_policy_sees(stack, model, policy)
        wrapped_env = _wrapped_env(stack)
    except NotCompilable as reason:
        raise NotCompilable(f"{reason} Use {EVALUATE_POLICY} instead.") from reason
    _require_spaces(policy, network, stack, venv.env_at(0))
    require_ends(venv.env_at(0), max_steps)
    num_envs = _num_envs(n_episodes, max_envs, venv) if wrapped_env.any_num_envs else stack.num_envs
    numbers = num_envs, n_episodes, deterministic, seed, max_steps
    with on(placement_of_episodes(model, policy, venv, num_envs).device):
        return _at_once(model, policy, network, venv, wrapped_env, *numbers)


def _num_envs(n_episodes: int, max_envs: int, venv: VectorEnv) -> int:
    """Return how many episodes run at once. Surplus environments stand still."""
    # A power of two, so that other numbers of episodes share a compiled function.
    num_envs = min(max_envs, 1 << (n_episodes - 1).bit_length())
    return num_envs + -num_envs % venv.num_agents if isinstance(venv, Agents) else num_envs


def _policy_of(model: object) -> BasePolicy:
    policy = model.policy if isinstance(model, BaseAlgorithm) else model
    if not isinstance(policy, BasePolicy):
        raise TypeError(f"model must be an SB3 algorithm or a policy of one, got a {type(model).__name__}.")
    return policy


def _at_once(
    model: BaseAlgorithm | BasePolicy,
    policy: BasePolicy,
    network: Network,
    envs: VectorEnv,
    wrapped_env: WrappedEnv,
    num_envs: int,
    n_episodes: int,
    deterministic: bool,
    seed: int,
    max_steps: int | None,
) -> Evaluation:
    """Run the episodes in the compiled function, `num_envs` of them in each call.

    `envs` has the parameters of each environment; `wrapped_env` presents the environments to the policy.
    """
    parameters = read_parameters(acting_tensors(policy, network))
    exploration_rate = getattr(model, "exploration_rate", 0.0) if isinstance(network, ExportedQNetwork) else 0.0
    _require_numbers(parameters, wrapped_env)
    if masks := is_maskable(policy):
        require_action_masks(wrapped_env.base.venv)
    limit = np.int32(NO_LIMIT if max_steps is None else min(max_steps, NO_LIMIT))
    parts = []
    for first in range(0, n_episodes, num_envs):
        episode = first + np.arange(num_envs)
        first_seed = (seed + first) % 2**32
        base, begun = wrapped_env.base.with_envs(_env_per_episode(envs, episode)), None
        if wrapped_env.wrappers:  # their first reset runs on the host, in SB3's own code
            base.seed(first_seed)
            copies = wrapped_env.around(base)
            observation = copies.reset()
            around = WrappedEnv.of(copies)
            begun = here(base.packed_state), around.state(), around.observation(observation)
        venv = base.venv
        if not isinstance(venv, Agents):  # they always start again, and what follows an episode is ignored
            venv = dataclasses.replace(venv, autoreset=AutoresetMode.DISABLED)
        seeds = (first_seed + np.arange(num_envs)).astype(np.uint32)
        given = (venv, parameters, begun, seeds, episode < n_episodes, limit, np.float32(exploration_rate))
        parts.append(compiled_function()(network, deterministic, masks, wrapped_env.types, base.compiled.state, *given))
    returns, lengths, terminated, truncated = (
        np.concatenate([np.asarray(part) for part in column])[:n_episodes] for column in zip(*parts)
    )
    return Evaluation(returns.astype(float), lengths.astype(int), terminated, truncated)


def _environments(env: object) -> tuple[VectorEnv, VecEnv]:
    """Return the environments, whose number does not matter, and the VecEnv that presents them to a policy."""
    if isinstance(env, str):
        env = jaxenvs.make(env)
    if isinstance(env, Environment):
        env = vectorize(env, 1)
    if isinstance(env, VectorEnv):
        one = with_opponent(env.env_at(0), None)  # the others may have other bounds, which do not matter
        return env, JaxVecEnv(dataclasses.replace(env, env=one, env_axis=None, autoreset=AutoresetMode.SAME_STEP))
    if not isinstance(env, VecEnv):
        raise TypeError(
            "env must be an id of jaxenvs.registered(), a jaxenvs Environment or VectorEnv, a VecEnv or a Gymnasium "
            f"environment, got a {type(env).__name__}."
        )
    base: Any = env.unwrapped
    return base.venv, env


def _as_the_policy_sees(env: VecEnv, model: BaseAlgorithm | BasePolicy, policy: BasePolicy) -> VecEnv:
    """Return the environments with channels-first images, normalized as in the model's training."""
    if not _fits(env.observation_space, policy.observation_space):
        with contextlib.suppress(AssertionError):  # no image has its channels last
            env = VecTransposeImage(env)
    if (trained_in := missing_statistics(model, env)) is None:
        warn_without_statistics(model, env, stacklevel=4)
        return env
    if type(trained_in) is not VecNormalize:
        raise NotCompilable(f"{type(trained_in).__name__} may normalize observations differently than VecNormalize.")
    return _normalized(env, trained_in)


def _normalized(env: VecEnv, like: VecNormalize) -> VecEnv:
    """Return the environments with statistics, around which are the wrappers that change the observations' shape."""
    if not isinstance(env, VecEnvWrapper) or _shapes(env.observation_space) == _shapes(like.observation_space):
        return with_statistics(env, like)
    new = object.__new__(type(env))
    vars(new).update(vars(env) | {"venv": _normalized(env.venv, like)})
    return new


def _shapes(space: Space) -> object:
    return {name: _shapes(part) for name, part in space.items()} if isinstance(space, spaces.Dict) else space.shape


def _is_on_host(env: object) -> TypeGuard[VecEnv | AnyEnv]:
    return isinstance(env, gymnasium.Env) or (isinstance(env, VecEnv) and not isinstance(env.unwrapped, JaxVecEnv))


def _wrapped_env(env: VecEnv) -> WrappedEnv:
    own = next((each for each in inner_environments(env) if has_own_methods(each)), None)
    if own is not None:
        raise NotCompilable(f"A method of the {type(own).__name__} object was replaced.")
    return WrappedEnv.of(env)


def _env_per_episode(venv: VectorEnv, episode: np.ndarray) -> VectorEnv:
    """Return one environment for each episode, with its parameters, as a JaxVecEnv takes them."""
    env = venv.env
    if venv.env_axis == 0:
        env = jax.tree.map(lambda leaf: leaf[episode % venv.num_envs], env)
    return dataclasses.replace(venv, env=env, num_envs=len(episode), autoreset=AutoresetMode.SAME_STEP)


def _require_known_predict(model: BaseAlgorithm | BasePolicy) -> None:
    """Raise NotCompilable unless actions are chosen by SB3's or bridge's own `predict`."""
    if not isinstance(model, BaseAlgorithm):
        return
    known = [BaseAlgorithm.predict, CompiledAlgorithm.predict]
    known += [each.predict for spec in SPECS.values() for each in spec.imported]
    if type(model).predict not in known or "predict" in vars(model):
        raise NotCompilable(f"{type(model).__name__} overrides predict, which a compiled function would not call.")


def _require_numbers(parameters: np.ndarray, wrapped_env: WrappedEnv) -> None:
    """Raise ValueError for NaN, which would still choose some action, and look like a result."""
    if np.isnan(parameters).any():
        count = int(np.isnan(parameters).sum())
        raise ValueError(
            f"model cannot be evaluated: {count} of the {parameters.size} weights of its policy are NaN. Load a zip "
            "that was saved before the training diverged."
        )
    normalizers = [
        wrapper.state().normalizer for wrapper in wrapped_env.wrappers if isinstance(wrapper, CompiledNormalize)
    ]
    if any(np.isnan(leaf).any() for each in normalizers for leaf in jax.tree.leaves(each.observation)):
        raise ValueError(
            "model cannot be evaluated: the statistics of the VecNormalize around env contain NaN. Load statistics "
            "without NaN with VecNormalize.load."
        )


def _require_spaces(policy: BasePolicy, network: Network, venv: VecEnv, env: Environment[Any]) -> None:
    if not _fits(venv.observation_space, policy.observation_space):
        raise ValueError(
            f"The policy expects observations of {policy.observation_space}, but {type(env.unwrapped).__name__} has "
            f"{venv.observation_space}."
        )
    if not _takes(env.action_space, network.head):
        raise ValueError(
            f"The policy chooses actions of {policy.action_space}, but {type(env.unwrapped).__name__} has "
            f"{env.action_space}."
        )


def _fits(given: Space, expected: Space) -> bool:
    """Return whether a policy for `expected` can take observations of `given`. Bounds do not matter to it."""
    if isinstance(given, spaces.Dict) and isinstance(expected, spaces.Dict):
        return all(name in given.spaces and _fits(given[name], part) for name, part in expected.items())
    if isinstance(given, spaces.Box) and isinstance(expected, spaces.Box):
        return given.shape == expected.shape
    return bool(given == expected)


def _takes(space: Space, head: ActionHead) -> bool:
    """Return whether the actions of a policy are members of `space`."""
    try:
        own = ActionHead.of(space)
    except ValueError:
        return False
    inside = all(low <= at for low, at in zip(own.low, head.low)) and all(
        high >= at for high, at in zip(own.high, head.high)
    )
    # The dtype does not matter: actions are cast to the environment's.
    owns = (
        dataclasses.replace(each, low=head.low, high=head.high, dtype=head.dtype) for each in (own, own.in_choices())
    )
    return inside and head in owns
