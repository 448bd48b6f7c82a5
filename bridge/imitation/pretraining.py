"""pretrain: behaviour cloning of a policy from recorded actions, in compiled epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer as SB3sReplayBuffer
from tqdm import tqdm

from bridge.algorithms.common.compiled_algorithm import CompiledAlgorithm
from bridge.configuration import with_own_settings
from bridge.contrib import is_recurrent
from bridge.errors import NotCompilable
from bridge.observations import map_parts
from bridge.replay import ReplayBuffer
from bridge.replay.rows import Rows
from bridge.translate.policies.exported_policy import ExportedPQNPolicy
from bridge.translate.policies.off_policy_networks import ExportedQNetwork, ExportedTD3Actor
from jaxenvs import arguments
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.default_device import cached_by_device, on
from jaxenvs.learn.learner_state import POLICY
from jaxenvs.learn.networks.distributions import Categorical
from jaxenvs.learn.optimization import ADAM, apply_gradients
from jaxenvs.spaces import leaf_bounds


@with_own_settings
def pretrain(
    model: CompiledAlgorithm,
    data: SB3sReplayBuffer | Mapping[str, Any],
    *,
    n_epochs: int = 10,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    held_out: float = 0.1,
    patience: int | None = None,
    progress_bar: bool = False,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Train a model's policy to act as in recorded data: behaviour cloning. `model.learn` continues from there.

    The loss is the negative log-likelihood of the actions, where the values of DQN, QRDQN and PQN count as logits; for
    TD3 and DDPG it is the squared distance of actions that are scaled to [-1, 1]. Adam minimizes it, with a state of
    its own; the model's optimizers, critics and counters stay as they are. A target network of the part that acts gets
    its weights. If the model trains in a VecNormalize, observations are normalized with its present statistics.

    Args:
      model: of jaxenvs.sb3, whose update can be compiled (`print(model.plan)`), and whose policy is not recurrent.
      data: a replay buffer; or `observations` and `actions` by these names, as `record_episodes` and Minari's episodes
        have them: arrays with one leading axis, of which `observations` is a dict of arrays for a Dict space. The
        observations are as the environments give them, before any normalization. Other names are ignored.
      n_epochs: passes over the data.
      batch_size: rows of a gradient step. The rows that are left over in an epoch are not used in it.
      learning_rate: of Adam.
      held_out: the share of the rows that is not trained on, and measured after each epoch; 0 for none.
      patience: end after this many epochs in a row without a smaller held-out loss, and keep the weights of the best
        epoch. None: train all epochs.
      progress_bar: show a bar on stderr.
      seed: of the rows that are held out, and of the orders.

    Returns:
      `loss` and `held_out_loss` of each epoch, (epochs,). The first is the mean over its gradient steps, the second is
        measured after it, and NaN if nothing is held out.

    Raises:
      NotCompilable: the policy's update cannot be compiled, or the policy is recurrent.
      TypeError, ValueError: an argument is invalid, or the data do not fit the model's spaces.
    """
    arguments.instance("model", model, CompiledAlgorithm, "an algorithm of jaxenvs.sb3")
    n_epochs = arguments.positive_int("n_epochs", n_epochs)
    batch_size = arguments.positive_int("batch_size", batch_size)
    arguments.number("learning_rate", learning_rate, least=0)
    arguments.seed("seed", seed)
    if not 0 <= arguments.number("held_out", held_out) < 1:
        raise ValueError(f"held_out must lie in [0, 1), got {held_out}.")
    if patience is not None and (arguments.positive_int("patience", patience) < 1 or not held_out):
        raise ValueError("patience needs a held_out of more than 0, as nothing is measured otherwise.")
    plan = model.plan
    if plan.learner is None or is_recurrent(model.policy):
        reasons = ["A recurrent policy cannot be pretrained."] if is_recurrent(model.policy) else plan.reasons
        raise NotCompilable(f"pretrain cannot compile this model: {' '.join(reasons)}")
    rows = _rows(model, data)
    rng, size = np.random.default_rng(seed), len(rows[1])
    order = rng.permutation(size)
    num_held_out = math.ceil(size * held_out)
    if size - num_held_out < 1:
        raise ValueError(f"data must have more rows than are held out, got {size}.")
    test, train = (jax.tree.map(lambda leaf, at=at: leaf[at], rows) for at in np.split(order, [num_held_out]))
    with on(plan.device):
        params, history = _fit(plan, train, test, rng, n_epochs, batch_size, learning_rate, patience, progress_bar)
    vectors, targets, states = plan.learner.vectors()
    name = next(iter(vectors))
    target = f"{name}_target"
    targets = targets | ({target: params} if target in targets else {})
    plan.learner.write_back(vectors | {name: params}, targets, states)
    return {name: np.array(each) for name, each in zip(("loss", "held_out_loss"), zip(*history))}


def _fit(
    plan: Any,
    train: tuple[Any, np.ndarray],
    test: tuple[Any, np.ndarray],
    rng: np.random.Generator,
    n_epochs: int,
    batch_size: int,
    learning_rate: float,
    patience: int | None,
    progress_bar: bool,
) -> tuple[Any, list[tuple[float, float]]]:
    """Return the trained parameters, as the learner has them, and the two losses of each epoch."""
    acting = plan.learner.acting()
    params, *statistics = acting.values()
    network = plan.network if POLICY in acting else plan.actor.network
    epoch, measure = _compiled_functions(network)
    train, test = (jax.device_put((network.from_host(seen), action)) for seen, action in (train, test))
    size = len(train[1])
    batch_size = min(batch_size, size)
    state = ADAM.init(params)
    best, history, since = (jax.tree.map(np.array, params), math.inf), list[tuple[float, float]](), 0
    for _ in tqdm(range(n_epochs), disable=not progress_bar, unit="epoch"):
        rows = rng.permutation(size)[: size - size % batch_size].reshape(-1, batch_size)
        params, state, loss = epoch(params, state, statistics, learning_rate, train, rows)
        held_out = float(measure(params, statistics, test)) if len(test[1]) else math.nan
        history.append((float(loss), held_out))
        since = 0 if held_out < best[1] or patience is None else since + 1
        if not since:
            best = jax.tree.map(np.array, params), held_out
        if patience is not None and since >= patience:
            break
    return best[0], history


@cached_by_device
def _compiled_functions(network: Any) -> tuple[Callable[..., Any], Callable[..., jax.Array]]:
    """Return the functions of an epoch of gradient steps, and of the loss of held-out rows."""

    def loss_of(params: Any, statistics: list[Any], observation: Any, action: jax.Array) -> jax.Array:
        if isinstance(network, ExportedTD3Actor):
            return jnp.mean((network.apply(params, observation) - action) ** 2)
        if isinstance(network, ExportedQNetwork | ExportedPQNPolicy):
            distribution: Any = Categorical(network.values(params, observation))
        else:
            given = network.apply(params, observation, *statistics)
            distribution = given[0] if isinstance(given, tuple) else given
        return -jnp.mean(distribution.log_prob(action))

    def epoch(params: Any, state: Any, statistics: Any, learning_rate: float, data: Any, rows: jax.Array) -> Any:
        def step(carry: Any, at: jax.Array) -> Any:
            params, state = carry
            batch = jax.tree.map(lambda leaf: leaf[at], data)
            loss, gradient = jax.value_and_grad(loss_of)(params, statistics, *batch)
            return apply_gradients(ADAM, learning_rate, None, params, state, gradient), loss

        (params, state), losses = jax.lax.scan(step, (params, state), rows)
        return params, state, losses.mean()

    def measure(params: Any, statistics: list[Any], data: tuple[Any, jax.Array]) -> jax.Array:
        return loss_of(params, statistics, *data)

    return (
        jax.jit(epoch, compiler_options=compiler_options()),
        jax.jit(measure, compiler_options=compiler_options()),
    )


def recorded(model: Any, data: object) -> tuple[Any, np.ndarray]:
    """Return the observations and the actions of data, as environments give and take them."""
    if isinstance(data, SB3sReplayBuffer):
        first, size = (data if isinstance(data, Rows) else ReplayBuffer.taking(data)).stored()
        at, space = (first + np.arange(size)) % data.buffer_size, model.action_space
        actions = data.actions[at].reshape(-1, *space.shape)
        return rows_of(data, at), model.policy.unscale_action(actions) if isinstance(space, spaces.Box) else actions
    if isinstance(data, Mapping) and {"observations", "actions"} <= data.keys():
        return map_parts(np.asarray, data["observations"]), np.asarray(data["actions"])
    raise TypeError(
        "data must be a replay buffer or have `observations` and `actions`, got "
        f"{arguments.shown(data) if not isinstance(data, Mapping) else sorted(data)}."
    )


def rows_of(buffer: Any, at: np.ndarray) -> Any:
    """Return the observations in some rows of one of SB3's buffers, in the shapes of their space."""
    return map_parts(
        lambda part, space: part[at].reshape(-1, *space.shape), buffer.observations, buffer.observation_space
    )


def _rows(model: Any, data: object) -> tuple[Any, np.ndarray]:
    """Return observations as the policy takes them, and actions as its distribution has them, with one leading axis."""
    space, policy = model.action_space, model.policy
    observations, actions = recorded(model, data)
    lengths = {len(part) for part in jax.tree.leaves(observations)}
    if lengths != {len(actions)} or actions.shape[1:] != (space.shape or ()):
        raise ValueError(
            f"actions must have the shape (n, {', '.join(map(str, space.shape or ()))}), and observations n rows, got "
            f"{actions.shape} and {sorted(lengths)} rows."
        )
    low, high = leaf_bounds(space)
    is_whole = True if isinstance(space, spaces.Box) else actions % 1 == 0
    if not ((actions >= low) & (actions <= high) & is_whole).all():
        raise ValueError(f"actions must lie in {space}, got numbers from {actions.min()} to {actions.max()}.")
    if (normalize := model.get_vec_normalize_env()) is not None:
        observations = normalize.normalize_obs(observations)
    tensors, _ = policy.obs_to_tensor(observations)
    if isinstance(space, spaces.Box) and policy.squash_output:
        actions = policy.scale_action(actions)
    return map_parts(lambda part: part.cpu().numpy(), tensors), np.asarray(actions)
