"""learn.PQN: its update is that of a plain NumPy version, and its policy acts epsilon-greedily."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxenvs
from jaxenvs import learn
from jaxenvs.learn.learner_state import POLICY
from jaxenvs.learn.on_policy.pqn import RATE, epsilon_greedy
from tests.environments import Counter

N_STEPS, N_ENVS, HIDDEN = 6, 3, (5, 4)
ENV = jaxenvs.TimeLimit(Counter(7, "box", "discrete"), 4)  # both kinds of ends
LR, GAMMA, LAMBDA, MAX_NORM = 0.1, 0.9, 0.6, 0.5


def lambda_returns(rewards, values, done, last_values):
    """R_t = r_t + gamma (1 - d_t) ((1 - lambda) max_a Q_{t+1} + lambda R_{t+1}), backwards."""
    returns, following, after = np.zeros_like(rewards), last_values, last_values
    for t in reversed(range(len(rewards))):
        returns[t] = rewards[t] + GAMMA * (1 - done[t]) * ((1 - LAMBDA) * after + LAMBDA * following)
        following, after = returns[t], values[t]
    return returns


def layers(params):
    num = len(HIDDEN)
    names = [(f"mlp_extractor.q_net.{3 * i}", f"mlp_extractor.q_net.{3 * i + 1}") for i in range(num)]
    return names, f"mlp_extractor.q_net.{3 * num}"


def forward(params, x):
    """Values of all actions, and what the gradient needs."""
    hidden, last = layers(params)
    kept = []
    for linear, norm in hidden:
        z = x @ params[f"{linear}.weight"].T + params[f"{linear}.bias"]
        deviation = np.sqrt(z.var(axis=1, keepdims=True) + 1e-5)
        normal = (z - z.mean(axis=1, keepdims=True)) / deviation
        y = normal * params[f"{norm}.weight"] + params[f"{norm}.bias"]
        kept.append((x, normal, deviation, y))
        x = np.maximum(y, 0)
    return x @ params[f"{last}.weight"].T + params[f"{last}.bias"], (x, kept)


def gradient(params, x, action, target):
    """The gradient of half the mean squared distance of the chosen values to their targets, by hand."""
    hidden, last = layers(params)
    values, (latent, kept) = forward(params, x)
    chosen = np.eye(values.shape[1])[action]
    of_values = chosen * ((values * chosen).sum(1) - target)[:, None] / len(x)
    found = {f"{last}.weight": of_values.T @ latent, f"{last}.bias": of_values.sum(0), RATE: np.zeros(1)}
    back = of_values @ params[f"{last}.weight"]
    for (linear, norm), (x, normal, deviation, y) in zip(reversed(hidden), reversed(kept)):
        back = back * (y > 0)
        found |= {f"{norm}.weight": (back * normal).sum(0), f"{norm}.bias": back.sum(0)}
        back = back * params[f"{norm}.weight"]
        centred = back - back.mean(1, keepdims=True) - normal * (back * normal).mean(1, keepdims=True)
        back = centred / deviation
        found |= {f"{linear}.weight": back.T @ x, f"{linear}.bias": back.sum(0)}
        back = back @ params[f"{linear}.weight"]
    return found


@pytest.fixture
def collected(x64):
    """A rollout in float64, with the parameters that acted and the observations after it."""
    network = learn.PQNNetwork.of(ENV, HIDDEN, activation=jax.nn.relu)
    params = jax.tree.map(lambda leaf: leaf.astype(float), network.init(jax.random.key(0)))
    venv = jaxenvs.VectorEnv(ENV, N_ENVS)
    state, timestep = venv.reset(jax.random.key(1))

    def step(state, action):
        state, timestep = venv.step(state, action)
        return state, timestep, (timestep.reward, timestep.done, timestep.truncated, timestep.final_observation)

    start = learn.CollectorState(state, timestep.observation)
    acting = network.exploring(params, 0.5)
    end, rollout, outputs = learn.collect(
        network, acting, step, start, jax.random.key(2), N_STEPS, gamma=GAMMA, gae_lambda=LAMBDA
    )
    return network, params, rollout, outputs, end


def test_returns_are_lambda_returns(collected):
    _, params, rollout, (reward, done, truncated, final), end = collected
    params = {name: np.asarray(leaf) for name, leaf in params.items()}

    def best(observation):
        return forward(params, np.asarray(observation, float).reshape(-1, observation.shape[-1]))[0].max(1)

    behind = best(final).reshape(N_STEPS, N_ENVS)
    rewards = np.asarray(reward) + GAMMA * np.where(truncated, behind, 0)
    values = best(rollout.observation).reshape(N_STEPS, N_ENVS)
    expected = lambda_returns(rewards, values, np.asarray(done), best(end.observation))
    assert np.asarray(truncated).any()
    assert (np.asarray(done) > np.asarray(truncated)).any() or np.asarray(done).any()
    np.testing.assert_allclose(rollout.returns, expected, rtol=1e-9, atol=1e-9)


def test_an_update_is_that_of_plain_numpy(collected):
    network, params, rollout, _, _ = collected
    pqn = learn.PQN(
        n_steps=N_STEPS, batch_size=7, n_epochs=2, learning_rate=LR, max_grad_norm=MAX_NORM, gae_lambda=LAMBDA
    )
    optimizers = pqn.optimizers(optax.identity())
    rng = np.random.default_rng(0)
    orders = np.stack([rng.permutation(N_STEPS * N_ENVS) for _ in range(2)])
    state, metrics = pqn.update(
        network, optimizers, pqn.create({POLICY: params}, optimizers), rollout, jax.random.key(0), jnp.asarray(orders)
    )
    ours = {name: np.asarray(leaf) for name, leaf in params.items()}
    x, action, target = (
        np.asarray(leaf, kind).reshape(N_STEPS * N_ENVS, *leaf.shape[2:])
        for leaf, kind in ((rollout.observation, float), (rollout.action, int), (rollout.returns, float))
    )
    losses = []
    for order in orders:
        for rows in np.split(order, [7, 14]):
            values = forward(ours, x[rows])[0][np.arange(len(rows)), action[rows]]
            losses.append(0.5 * ((values - target[rows]) ** 2).mean())
            step = gradient(ours, x[rows], action[rows], target[rows])
            norm = np.sqrt(sum((each**2).sum() for each in step.values()))
            scale = min(1, MAX_NORM / (norm + 1e-6))
            ours = {name: leaf - LR * scale * step[name] for name, leaf in ours.items()}
    for name, leaf in state.params[POLICY].items():
        np.testing.assert_allclose(leaf, ours[name], rtol=1e-7, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-7)
    assert state.num_updates == metrics["epochs"] == 2


def test_a_share_of_the_actions_is_random():
    values = jnp.array([[0.0, 2.0, 1.0], [3.0, 1.0, 2.0]])
    distribution = epsilon_greedy(values, jnp.array([0.3]))
    np.testing.assert_allclose(jnp.exp(distribution.log_prob(jnp.array([1, 2]))), [0.8, 0.1], rtol=1e-5)
    drawn = np.asarray(jax.vmap(distribution.sample)(distribution.noise(jax.random.key(0), 20_000)))
    np.testing.assert_allclose((drawn == [1, 0]).mean(0), 0.8, atol=0.02)
    assert distribution.mode().tolist() == [1, 0]
    greedy = epsilon_greedy(values, jnp.zeros(1))
    assert (jax.vmap(greedy.sample)(greedy.noise(jax.random.key(1), 100)) == jnp.array([1, 0])).all()


def test_new_parameters_act_greedily():
    network = learn.PQNNetwork.of(ENV, HIDDEN)
    params, observation = network.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (20, 2))
    expected = network.values(params, observation).argmax(1)
    np.testing.assert_array_equal(network.apply(params, observation)[0].mode(), expected)
    assert len(set(expected.tolist())) > 1


def test_only_discrete_actions_are_taken():
    with pytest.raises(ValueError, match="PQN needs a Discrete action space, got Box"):
        learn.PQNNetwork.of(jaxenvs.make("Pendulum-v1"))


@pytest.mark.thorough
def test_it_solves_cartpole():
    num_envs, n_steps, iterations = 32, 64, 244  # with the hyperparameters of the paper
    venv = jaxenvs.make_vec("CartPole-v1", num_envs)
    done = np.arange(iterations) / iterations
    pqn = learn.PQN(
        n_steps=n_steps,
        n_epochs=4,
        gae_lambda=0.95,
        learning_rate=1e-4 * (1 - done),
        exploration_rate=np.interp(done, [0, 0.2], [1, 0.2]),
    )
    network = learn.PQNNetwork.of(venv.env, (128, 128))
    training = learn.Training(venv, network, pqn, iterations * n_steps * num_envs)
    result = jax.jit(learn.train)(jax.random.key(0), training)
    assert np.nanmean(result.metrics["iteration_episode_return"][-60:]) > 350  # a fifth of the actions is random
