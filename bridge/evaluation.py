"""evaluate: thousands of episodes of a Stable-Baselines3 policy at once, in one compiled program."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any, TypeGuard

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize, VecTransposeImage

import jaxenvs
from bridge.algorithms.base import CompiledAlgorithm
from bridge.algorithms.dqn import DQN
from bridge.errors import NotCompilable
from bridge.evaluation_on_host import run_episodes
from bridge.translate.modules import read_parameters
from bridge.translate.off_policy import acting_part, export_acting
from bridge.translate.off_policy_networks import Deterministic, ExportedActor, ExportedQNetwork
from bridge.translate.policies import ExportedPolicy
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import AutoresetMode, Environment, TimeLimit, VectorEnv, Wrapper, arguments
from jaxenvs.compilation import compiler_options, require_usable
from jaxenvs.learn import ActionHead, Moments, Normalizer

Network = ExportedPolicy | ExportedActor
EVALUATE_POLICY = "stable_baselines3.common.evaluation.evaluate_policy"
# Folded into the key of a lane where the number of an episode would be, for the policy's draws: no episode has it.
POLICY = 2**32 - 1
NO_LIMIT = 2**31 - 1
# More takes days, or more memory than there is.
MOST_EPISODES, MOST_LANES = 10**7, 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """What `n_episodes` episodes came to. `str` has the mean and the standard deviation of their returns.

    Attributes:
      returns: float (n_episodes,), the undiscounted sums of the rewards of the environment, before normalisation.
      lengths: int (n_episodes,), in steps.
      terminated: bool (n_episodes,), the environment ended the episode.
      truncated: bool (n_episodes,), its TimeLimit did, or `max_steps`. An episode may be both.
    """

    returns: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns, with n in the denominator, as in SB3's `evaluate_policy`."""
        return float(self.returns.std())

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f} over {len(self.returns)} episodes"


def evaluate(
    model: BaseAlgorithm | BasePolicy,
    env: str | Environment[Any] | VectorEnv | VecEnv | gymnasium.Env[Any, Any],
    n_episodes: int,
    *,
    deterministic: bool = True,
    seed: int = 0,
    max_steps: int | None = None,
    max_lanes: int = 4096,
) -> Evaluation:
    """Run whole episodes of a policy, many at once. Nothing of the model or of `env` changes.

    Every episode that starts is counted, however long it gets, so that short ones weigh no more than long ones.

    Observations are normalised by the statistics of the VecNormalize in `env`; if there is none, by those of the one
    that the model trains in, `model.get_vec_normalize_env()`, if any. A model of `bridge` that was loaded without its
    environments has none, but knows that it was trained on normalised observations, and a warning says so.

    A Gymnasium environment, and any other VecEnv than a JaxVecEnv, is stepped on the host, by SB3's `evaluate_policy`
    and the model's `predict`; `terminated` is then what was not truncated, because SB3 tells no more.

    Args:
      model: PPO, A2C, DQN, SAC, TD3, DDPG or another SB3 algorithm with a policy of one of these, bridge's or SB3's
        own; or such a policy. On the host, any SB3 model.
      env: an id of `jaxenvs.registered()`, an Environment or a VectorEnv; or a JaxVecEnv, also in VecNormalize,
        VecMonitor or VecTransposeImage; or one on the host. Of JAX environments only the parameters are used. If lanes
        have parameters of their own, episode i has those of lane i modulo their number.
      n_episodes: how many.
      deterministic: the most likely actions. Otherwise they are drawn; with state-dependent exploration, from one
        matrix for each episode; of a DQN model, at random as often as its `exploration_rate` says.
      seed: episode i is the first of lane i of a JaxVecEnv with this seed: that of `jax.random.key(seed + i)`.
      max_steps: episodes still going on after so many steps are truncated there. Needed without a TimeLimit.
      max_lanes: no more episodes than this at once; the others follow. Only time and memory depend on it.

    Raises:
      NotCompilable: the policy, or a wrapper of `env`, has no translation to JAX.
      TypeError: `model` or `env` is not one of these.
      UnknownEnvironment: there is no such id.
      ValueError: the policy is not for these spaces, nothing limits the episodes, a number is not positive, or weights
        or statistics are NaN.
    """
    require_usable()
    n_episodes = arguments.positive_int("n_episodes", n_episodes, MOST_EPISODES)
    max_lanes = arguments.positive_int("max_lanes", max_lanes, MOST_LANES)
    if max_steps is not None:
        max_steps = arguments.positive_int("max_steps", max_steps)
    seed = arguments.integer("seed", seed, -(2**63), None, "an int")
    arguments.boolean("deterministic", deterministic)
    policy: Any = model.policy if isinstance(model, BaseAlgorithm) else model
    if not isinstance(policy, BasePolicy):
        raise TypeError(f"model must be an SB3 algorithm or a policy of one, got a {type(model).__name__}.")
    if _is_on_host(env):
        if max_steps is not None:
            raise ValueError(
                f"max_steps cuts episodes of JAX environments alone, got {max_steps}. For others there is Gymnasium's "
                "TimeLimit."
            )
        trained_in = model.get_vec_normalize_env() if isinstance(model, BaseAlgorithm) else None
        return Evaluation(*run_episodes(model, env, n_episodes, deterministic, seed, trained_in))
    try:
        venv, normalize = _environments(env)
        if normalize is None and isinstance(model, BaseAlgorithm):
            normalize = model.get_vec_normalize_env()
            if normalize is None and getattr(model, "normalized_observations", False):
                warnings.warn(
                    "The model was trained on observations normalised by a VecNormalize, and there is none here: give "
                    "env in a VecNormalize with the statistics of the training (VecNormalize.load).",
                    stacklevel=2,
                )
        if isinstance(model, BaseAlgorithm):
            _require_known_predict(model)
        network = export_acting(policy)
        normalizer = _normalizer(normalize, network)
    except NotCompilable as reason:
        raise NotCompilable(f"{reason} {EVALUATE_POLICY} takes what has no translation.") from reason
    lane = venv.lane_env(0)
    _require_spaces(policy, network, lane)
    if max_steps is None and not _has_time_limit(lane):
        raise ValueError(f"{type(lane).__name__} has no TimeLimit, so an episode may never end: give max_steps.")

    # A power of two, so that other numbers of episodes find the program compiled; lanes too many stand still.
    num_lanes = min(max_lanes, 1 << (n_episodes - 1).bit_length())
    parameters = read_parameters(acting_part(policy).parameters())
    exploration_rate = getattr(model, "exploration_rate", 0.0) if isinstance(network, ExportedQNetwork) else 0.0
    _require_numbers(parameters, normalizer)
    limit = np.int32(NO_LIMIT if max_steps is None else min(max_steps, NO_LIMIT))
    parts = []
    for first in range(0, n_episodes, num_lanes):
        episode = first + np.arange(num_lanes)
        seeds = ((seed + first) % 2**32 + np.arange(num_lanes)).astype(np.uint32)
        lanes = _lanes(venv, episode)
        wanted = episode < n_episodes
        given = (lanes, parameters, normalizer, seeds, wanted, limit, np.float32(exploration_rate))
        parts.append(_program()(network, deterministic, *given))
    returns, lengths, terminated, truncated = (
        np.concatenate([np.asarray(part) for part in column])[:n_episodes] for column in zip(*parts)
    )
    return Evaluation(returns.astype(float), lengths.astype(int), terminated, truncated)


# --- The program ------------------------------------------------------------------------------------------------


def _run(
    network: Network,
    deterministic: bool,
    venv: VectorEnv,
    parameters: jax.Array,
    normalizer: Normalizer | None,
    seeds: jax.Array,
    wanted: jax.Array,
    max_steps: jax.Array,
    exploration_rate: jax.Array,
) -> tuple[jax.Array, ...]:
    """The first episode of every lane in `wanted`: return, length, terminated, truncated, each (num_envs,)."""
    lane_keys = jax.vmap(jax.random.key)(seeds)
    policy_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(lane_keys, jnp.uint32(POLICY))
    named = network.unravel(parameters)

    # One lane at a time, so that what a lane draws does not depend on how many there are.
    def act(observation: Any, key: jax.Array, step: jax.Array) -> jax.Array:
        seen = network.as_seen(jax.tree.map(lambda leaf: leaf[None], observation))
        distribution: Any = network.distribution(named, seen)
        if isinstance(network, ExportedQNetwork) and not deterministic:
            key, which = jax.random.split(jax.random.fold_in(key, step))
            random = jax.random.randint(key, (1,), 0, network.head.size, jnp.int32)
            explores = jax.random.uniform(which) < exploration_rate
            return network.to_env(jnp.where(explores, random, distribution.mode()))[0]
        if deterministic or isinstance(distribution, Deterministic):
            return network.to_env(distribution.mode())[0]
        if network.exploration is None:
            key = jax.random.fold_in(key, step)
        sample = distribution.sample(distribution.noise(key, 1)[0])
        return network.to_env(sample)[0]

    def record(timestep: Any) -> tuple[jax.Array, ...]:
        return timestep.episode_return, timestep.episode_length, timestep.terminated, timestep.truncated

    def going_on(carry: Any) -> Any:
        _, _, _, running, step = carry
        return jnp.any(running) & (step < max_steps)

    def advance(carry: Any) -> Any:
        state, observation, records, running, step = carry
        if normalizer is not None:
            observation = normalizer.normalize_observation(observation)
        # Lanes whose episode has ended step on, and nobody looks.
        state, timestep = venv.step(state, jax.vmap(act, in_axes=(0, 0, None))(observation, policy_keys, step))
        records = tuple(jnp.where(running, new, old) for new, old in zip(record(timestep), records))
        return state, timestep.observation, records, running & ~timestep.done, step + 1

    state, timestep = venv.reset(lane_keys)
    start = (state, timestep.observation, record(timestep), wanted, jnp.zeros((), jnp.int32))
    _, _, (returns, lengths, terminated, truncated), running, _ = jax.lax.while_loop(going_on, advance, start)
    return returns, lengths, terminated, truncated | running


@functools.cache
def _program() -> Any:
    """Jitted once for the process, so that an evaluation like one before does not compile again."""
    return jax.jit(_run, static_argnums=(0, 1), compiler_options=compiler_options())


# --- What the program takes -------------------------------------------------------------------------------------


def _environments(env: Any) -> tuple[VectorEnv, VecNormalize | None]:
    """The environments, whose number does not matter, and what normalises them."""
    if isinstance(env, str):
        env = jaxenvs.make(env)
    if isinstance(env, Environment):
        return VectorEnv(env, 1), None
    if isinstance(env, VectorEnv):
        return env, None
    if not isinstance(env, VecEnv):
        raise TypeError(
            "env must be an id of jaxenvs.registered(), a jaxenvs Environment or VectorEnv, a VecEnv or a Gymnasium "
            f"environment, got a {type(env).__name__}."
        )
    normalize = None
    while env is not env.unwrapped:
        # Exact types: a subclass may do anything.
        if type(env) is VecNormalize and normalize is None:
            normalize = env
        elif type(env) not in (VecMonitor, VecTransposeImage):
            raise NotCompilable(
                f"Episodes in a {type(env).__name__} are not compiled; in VecNormalize, VecMonitor, VecTransposeImage "
                "they are."
            )
        env = env.venv
    return env.venv, normalize


def _is_on_host(env: Any) -> TypeGuard[VecEnv | gymnasium.Env[Any, Any]]:
    return isinstance(env, gymnasium.Env) or (isinstance(env, VecEnv) and not isinstance(env.unwrapped, JaxVecEnv))


def _lanes(venv: VectorEnv, episode: np.ndarray) -> VectorEnv:
    """One lane for each episode, with the parameters that it has."""
    env = venv.env
    if venv.env_axis == 0:
        env = jax.tree.map(lambda leaf: leaf[episode % venv.num_envs], env)
    return VectorEnv(env, len(episode), AutoresetMode.DISABLED, venv.env_axis)


def _require_known_predict(model: BaseAlgorithm) -> None:
    """Refuse actions that are not SB3's choice, nor bridge's."""
    known = (BaseAlgorithm.predict, CompiledAlgorithm.predict, stable_baselines3.DQN.predict, DQN.predict)
    if type(model).predict not in known or "predict" in vars(model):
        raise NotCompilable(f"{type(model).__name__} has a method predict of its own.")


def _normalizer(env: VecNormalize | None, network: Network) -> Normalizer | None:
    """What VecNormalize does to observations, as its statistics are now."""
    if env is None or not env.norm_obs:
        return None
    if type(env) is not VecNormalize:
        raise NotCompilable(f"{type(env).__name__} may normalise in a way of its own.")
    rms: Any = env.obs_rms
    if isinstance(network.encoding, tuple):
        moments: Any = {name: _moments(rms[name]) if name in rms else None for name, _ in network.encoding}
    else:
        moments = _moments(rms)
    nothing = Normalizer.create({}, 1, epsilon=env.epsilon, clip_observation=env.clip_obs, training=False)
    return nothing.replace(observation=moments, observation_seen=jax.tree.map(jnp.zeros_like, moments))


def _moments(rms: RunningMeanStd) -> Moments:
    return Moments(*(jnp.asarray(part, float) for part in (rms.mean, rms.var, rms.count)))


def _has_time_limit(env: Environment[Any]) -> bool:
    while isinstance(env, Wrapper) and not isinstance(env, TimeLimit):
        env = env.env
    return isinstance(env, TimeLimit)


def _require_numbers(parameters: np.ndarray, normalizer: Normalizer | None) -> None:
    """NaN would act as some action or other, and look like a result."""
    if np.isnan(parameters).any():
        raise ValueError(f"{int(np.isnan(parameters).sum())} of the {parameters.size} weights of the policy are NaN.")
    statistics = () if normalizer is None else jax.tree.leaves(normalizer.observation)
    if any(np.isnan(leaf).any() for leaf in statistics):
        raise ValueError("The statistics of the VecNormalize are NaN.")


def _require_spaces(policy: BasePolicy, network: Network, env: Environment[Any]) -> None:
    if not _fits(env.observation_space, policy.observation_space):
        raise ValueError(
            f"The policy is for observations of {policy.observation_space}, "
            f"{type(env.unwrapped).__name__} gives those of {env.observation_space}."
        )
    if not _takes(env.action_space, network.head):
        raise ValueError(
            f"The policy gives actions of {policy.action_space}, "
            f"{type(env.unwrapped).__name__} takes those of {env.action_space}."
        )


def _fits(given: spaces.Space[Any], expected: spaces.Space[Any]) -> bool:
    """Whether a policy for `expected` can see observations of `given`. Bounds do not matter to it."""
    if isinstance(given, spaces.Dict) and isinstance(expected, spaces.Dict):
        return all(name in given.spaces and _fits(given[name], part) for name, part in expected.items())
    if isinstance(given, spaces.Box) and isinstance(expected, spaces.Box):
        first = (given.shape[-1:] + given.shape[:-1]) if is_image_space(expected) else given.shape
        return expected.shape in (given.shape, first)
    return bool(given == expected)


def _takes(space: spaces.Space[Any], head: ActionHead) -> bool:
    """Whether the actions of a policy are members of `space`."""
    try:
        own = ActionHead.of(space)
    except ValueError:
        return False
    inside = all(low <= at for low, at in zip(own.low, head.low)) and all(
        high >= at for high, at in zip(own.high, head.high)
    )
    # The dtype does not matter: actions are cast to that of the environment.
    return inside and dataclasses.replace(own, low=head.low, high=head.high, dtype=head.dtype) == head
