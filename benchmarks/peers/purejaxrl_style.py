"""PPO on gymnax in the style of PureJaxRL (Lu et al. 2022, https://github.com/luchris429/purejaxrl).

PureJaxRL is on no package index. The design is theirs, the code is not: environments wrapped to log episodes, flax
networks and a TrainState, and one scan over updates. Inside it is one scan over steps, one backwards for advantages,
and one over epochs, each of which permutes and cuts the batch and scans over the pieces. As in PureJaxRL, values are
clipped like the policy, and truncation counts as termination.

It runs in the environment of rejax-requirements.txt, which has all that it imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
from flax.linen.initializers import constant, orthogonal
from flax.training.train_state import TrainState
from gymnax.wrappers.purerl import FlattenObservationWrapper, LogWrapper

from benchmarks.peers.worker import Setting, Side, compiled_training, serve


class ActorCritic(nn.Module):
    """Logits of the actions, and values: two towers of 64-64 tanh."""

    num_actions: int

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = []
        for size, gain in ((self.num_actions, 0.01), (1, 1.0)):
            hidden = observation
            for _ in range(2):
                hidden = nn.tanh(nn.Dense(64, kernel_init=orthogonal(2**0.5), bias_init=constant(0.0))(hidden))
            outputs.append(nn.Dense(size, kernel_init=orthogonal(gain), bias_init=constant(0.0))(hidden))
        logits, value = outputs
        return logits, value.squeeze(-1)


class Transition(NamedTuple):
    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array
    info: dict[str, jax.Array]


class Runner(NamedTuple):
    """The state of a training, which `train` takes and returns."""

    learner: TrainState
    env_state: Any
    observation: jax.Array
    key: jax.Array


def prepare(setting: Setting, iterations: int, compiler_options: Mapping[str, str]) -> Side:
    """Return the whole training as one compiled function, from state to state."""
    env, env_params = gymnax.make("CartPole-v1")
    env = LogWrapper(FlattenObservationWrapper(env))

    def reset(key: jax.Array) -> Any:
        keys = jax.random.split(key, setting.n_envs)
        return jax.vmap(env.reset, in_axes=(0, None))(keys, env_params)

    def step(key: jax.Array, env_state: Any, action: jax.Array) -> Any:
        keys = jax.random.split(key, setting.n_envs)
        return jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, env_state, action, env_params)

    init, train = training_functions(reset, step, env.action_space(env_params).n, setting, iterations)
    return compiled_training(init, train, iterations * setting.rollout, compiler_options)


def training_functions(
    reset: Callable[[jax.Array], Any],
    step: Callable[[jax.Array, Any, jax.Array], Any],
    num_actions: int,
    setting: Setting,
    iterations: int,
) -> tuple[Callable[..., Runner], Callable[..., Any]]:
    """Return the functions that start a training and continue it for some iterations.

    Args:
      reset, step: of all `setting.n_envs` environments together, with a key.
    """
    network = ActorCritic(num_actions)

    def init(key: jax.Array) -> Runner:
        key, init_key, reset_key = jax.random.split(key, 3)
        observation, env_state = reset(reset_key)
        optimizer = optax.chain(
            optax.clip_by_global_norm(setting.max_grad_norm),
            optax.adam(setting.learning_rate, eps=1e-5),
        )
        params = network.init(init_key, observation)
        return Runner(
            TrainState.create(apply_fn=network.apply, params=params, tx=optimizer), env_state, observation, key
        )

    def act(runner: Runner, _: None) -> tuple[Runner, Transition]:
        key, action_key, step_key = jax.random.split(runner.key, 3)
        logits, value = network.apply(runner.learner.params, runner.observation)
        action = jax.random.categorical(action_key, logits)
        observation, env_state, reward, done, info = step(step_key, runner.env_state, action)
        transition = Transition(runner.observation, action, _log_prob(logits, action), value, reward, done, info)
        return Runner(runner.learner, env_state, observation, key), transition

    def update(learner: TrainState, batch: Any) -> tuple[TrainState, Any]:
        losses, gradient = jax.value_and_grad(_loss, has_aux=True)(learner.params, network, setting, batch)
        return learner.apply_gradients(grads=gradient), losses

    def iterate(runner: Runner, _: None) -> tuple[Runner, dict[str, jax.Array]]:
        runner, transitions = jax.lax.scan(act, runner, None, setting.n_steps)
        _, last_value = network.apply(runner.learner.params, runner.observation)
        advantage = _advantages(setting, transitions, last_value)
        data = jax.tree.map(
            lambda leaf: leaf.reshape(setting.rollout, *leaf.shape[2:]),
            (transitions, advantage, advantage + transitions.value),
        )

        def epoch(carry: tuple[TrainState, jax.Array], _: None) -> Any:
            learner, key = carry
            key, permutation_key = jax.random.split(key)
            order = jax.random.permutation(permutation_key, setting.rollout)
            minibatches = jax.tree.map(
                lambda leaf: jnp.take(leaf, order, axis=0).reshape(-1, setting.batch_size, *leaf.shape[1:]), data
            )
            learner, losses = jax.lax.scan(update, learner, minibatches)
            return (learner, key), losses

        (learner, key), _ = jax.lax.scan(epoch, (runner.learner, runner.key), None, setting.n_epochs)
        return runner._replace(learner=learner, key=key), transitions.info

    def train(runner: Runner) -> tuple[Runner, dict[str, jax.Array]]:
        return jax.lax.scan(iterate, runner, None, iterations)

    return init, train


def _advantages(setting: Setting, transitions: Transition, last_value: jax.Array) -> jax.Array:
    def accumulate(carry: tuple[jax.Array, jax.Array], now: Transition) -> Any:
        advantage, next_value = carry
        delta = now.reward + setting.gamma * next_value * (1 - now.done) - now.value
        advantage = delta + setting.gamma * setting.gae_lambda * (1 - now.done) * advantage
        return (advantage, now.value), advantage

    start = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(accumulate, start, transitions, reverse=True, unroll=16)[1]


def _loss(params: Any, network: ActorCritic, setting: Setting, batch: tuple[Transition, jax.Array, jax.Array]) -> Any:
    old, advantage, target = batch
    logits, value = network.apply(params, old.observation)
    clipped_value = old.value + jnp.clip(value - old.value, -setting.clip_range, setting.clip_range)
    value_loss = 0.5 * jnp.maximum((value - target) ** 2, (clipped_value - target) ** 2).mean()
    ratio = jnp.exp(_log_prob(logits, old.action) - old.log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped_ratio = jnp.clip(ratio, 1 - setting.clip_range, 1 + setting.clip_range)
    policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()
    log_probs = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    total = policy_loss + setting.vf_coef * value_loss - setting.ent_coef * entropy
    return total, (value_loss, policy_loss, entropy)


def _log_prob(logits: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1).squeeze(-1)


if __name__ == "__main__":
    serve(prepare)
