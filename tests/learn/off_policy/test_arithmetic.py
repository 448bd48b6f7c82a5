"""The arithmetic of Stable-Baselines3: the same weights, moments, batches and noise give the same updates."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import ReplayBufferSamples

import bridge
from jaxenvs.learn import (
    DDPG,
    DQN,
    QRDQN,
    SAC,
    TD3,
    TQC,
    CrossQ,
    CrossQPolicy,
    DQNPolicy,
    QRDQNPolicy,
    SACPolicy,
    StateDependentGaussian,
    TD3Policy,
    TQCPolicy,
    Transitions,
)
from jaxenvs.learn.networks.actor_critic import linear
from jaxenvs.learn.off_policy.policies import Perceptron
from jaxenvs.learn.optimization import ravel
from tests.environments import Counter
from tests.stock import STOCK

ENV = {kind: Counter(action_kind=kind) for kind in ("discrete", "box")}
BATCH, GAMMA, ARCH = 16, 0.9, (16, 8)
# The first versions of SB3 that are supported have no returns of several steps.
N_STEPS = 3 if "discounts" in ReplayBufferSamples._fields else 1
SHARED = {"learning_rate": 1e-3, "batch_size": BATCH, "gamma": GAMMA}
OURS = {
    "DQN": (DQN, DQNPolicy),
    "QRDQN": (QRDQN, QRDQNPolicy),
    "SAC": (SAC, SACPolicy),
    "TQC": (TQC, TQCPolicy),
    "CrossQ": (CrossQ, CrossQPolicy),
    "TD3": (TD3, TD3Policy),
    "DDPG": (DDPG, TD3Policy),
}
DISCRETE = ("DQN", "QRDQN")

# What differs from SB3's defaults, there and here.
CASES = {
    "DQN": ({"max_grad_norm": 0.1}, {"max_grad_norm": 0.1}),
    "QRDQN": ({}, {}),
    "QRDQN, scaled down": ({"max_grad_norm": 0.1}, {"max_grad_norm": 0.1}),
    "SAC": ({}, {}),
    "SAC, fixed": (
        {"ent_coef": 0.2, "target_update_interval": 2},
        {"ent_coef": 0.2, "auto_ent_coef": False, "target_update_interval": 2},
    ),
    "SAC, aimed": ({"ent_coef": "auto_0.3", "target_entropy": -1.5}, {"ent_coef": 0.3, "target_entropy": -1.5}),
    "SAC, state-dependent": ({"use_sde": True}, {}),
    "TQC": ({}, {}),
    "TQC, many dropped": (
        {"top_quantiles_to_drop_per_net": 10, "ent_coef": 0.2},
        {"top_quantiles_to_drop_per_net": 10, "ent_coef": 0.2, "auto_ent_coef": False},
    ),
    "CrossQ": ({}, {}),
    "CrossQ, fixed": (
        {"ent_coef": 0.2, "policy_delay": 1},
        {"ent_coef": 0.2, "auto_ent_coef": False, "policy_delay": 1},
    ),
    "TD3": ({}, {}),
    "DDPG": ({}, {}),
}
# Of the policies, there and here: where updates begin, the critics of CrossQ have seen so many batches, its actor not.
OF_POLICY = {
    "CrossQ": (
        {"renorm_warmup_steps": 2, "batch_norm_momentum": 0.1},
        {"warmup_steps": 2, "momentum": 0.1},
    ),
    "DDPG": ({}, {"n_critics": 1}),
}


@pytest.fixture
def float64(x64, monkeypatch):
    """Both sides in float64. SB3's policies encode observations by `float`."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def make_batches(rng, is_discrete, num):
    """Transitions with the leading axis `num`, in float64."""
    shape = (num, BATCH)
    action = rng.integers(3, size=shape) if is_discrete else rng.uniform(-1, 1, size=(*shape, 2))
    discount = GAMMA ** rng.integers(1, N_STEPS + 1, size=shape) * (rng.random(shape) < 0.8)
    observation, next_observation = rng.normal(size=(2, *shape, 2))
    return Transitions(observation, action, rng.normal(size=shape), next_observation, discount)


def make_stock(name, settings, dtype):
    """A model of SB3's that learns from what `teach` gives it."""
    kind = "discrete" if name in DISCRETE else "box"
    model = getattr(STOCK, name)(
        "MlpPolicy",
        bridge.JaxVecEnv(ENV[kind], 1),
        policy_kwargs={"net_arch": list(ARCH), **OF_POLICY.get(name, ({}, {}))[0]},
        buffer_size=10,
        seed=0,
        device="cpu",
        **SHARED,
        **settings,
    )
    model.set_logger(configure(None, []))
    model.policy.to(dtype)
    if getattr(model, "log_ent_coef", None) is not None:
        model.log_ent_coef.data = model.log_ent_coef.data.to(dtype)
    elif hasattr(model, "ent_coef_tensor"):
        model.ent_coef_tensor = torch.tensor(settings["ent_coef"], dtype=dtype)
    return model


def teach(model, batches, noise, monkeypatch, dtype):
    """SB3's `train` on given batches, one after the other, and given noise."""

    def tensor(array):
        return torch.tensor(array).to(dtype if array.dtype.kind == "f" else torch.int64)

    def samples():
        for i in range(batches.reward.shape[0]):
            batch = jax.tree.map(lambda leaf, i=i: tensor(leaf[i]), batches)
            action = batch.action if batch.action.ndim == 2 else batch.action[:, None]
            # SB3 has the discount apart from whether the episode terminated.
            done = (batch.discount == 0).to(dtype)[:, None]
            discount = torch.where(batch.discount == 0, 0.5, batch.discount)[:, None]
            fields = (batch.observation, action, batch.next_observation, done, batch.reward[:, None], discount)
            yield ReplayBufferSamples(*fields[: len(ReplayBufferSamples._fields)])

    samples, noise = samples(), iter([tensor(draw) for draw in noise])
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: next(samples))
    normal = torch.distributions.Normal
    monkeypatch.setattr(normal, "rsample", lambda self, *_: self.loc + self.scale * next(noise))
    monkeypatch.setattr(torch.Tensor, "normal_", lambda self, _, std: self.copy_(std * next(noise)))
    model.train(batches.reward.shape[0], BATCH)


NETWORKS = (
    "q_net",
    "q_net_target",
    "quantile_net",
    "quantile_net_target",
    "actor",
    "critic",
    "actor_target",
    "critic_target",
)


def read(model):
    """Parameters, and the state of each optimiser by the names of the parameters: mean, mean square and steps."""
    networks = {name: getattr(model.policy, name) for name in NETWORKS if hasattr(model.policy, name)}
    params = {name: dict(network.named_parameters()) for name, network in networks.items()}
    optimizers = {name: getattr(network, "optimizer", None) for name, network in networks.items()}
    if hasattr(model.policy, "optimizer"):  # of the one network that learns
        optimizers[next(iter(networks))] = model.policy.optimizer
    if getattr(model, "log_ent_coef", None) is not None:
        params["log_ent_coef"] = {"log_ent_coef": model.log_ent_coef}
        optimizers["log_ent_coef"] = model.ent_coef_optimizer
    moments = {}
    for name, optimizer in optimizers.items():
        if optimizer is not None:
            states = {key: optimizer.state[parameter] for key, parameter in params[name].items()}
            moments[name] = [
                {key: state[part].detach().numpy().copy() for key, state in states.items()}
                for part in ("exp_avg", "exp_avg_sq", "step")
            ]
    return jax.tree.map(lambda leaf: leaf.detach().numpy().copy(), params), moments


def as_state(settings, model):
    """What `read` gives as the state of our learner."""
    params, moments = read(model)
    targets = {name: tree for name, tree in params.items() if name.endswith("_target")} | read_statistics(model)
    params = {name: tree for name, tree in params.items() if name not in targets}
    if "log_ent_coef" in params:
        params["log_ent_coef"] = params["log_ent_coef"]["log_ent_coef"]
    params = jax.tree.map(jnp.asarray, params)
    state = settings.create(params | read_statistics(model), settings.optimizers())
    states = {
        name: state.optimizer_states[name]._replace(
            count=jnp.asarray(int(next(iter(step.values()))), jnp.int32), mu=ravel(mean)[0], nu=ravel(square)[0]
        )
        for name, (mean, square, step) in moments.items()
    }
    return dataclasses.replace(
        state,
        params=params,
        targets=jax.tree.map(jnp.asarray, targets),
        optimizer_states=states,
        num_updates=jnp.asarray(model._n_updates, jnp.int32),
    )


def read_statistics(model):
    """Those of CrossQ's networks: means and variances layer by layer, and how many batches they are of."""
    statistics = {}
    for name in ("actor", "critic"):
        buffers = dict(getattr(model.policy, name, torch.nn.Identity()).named_buffers())
        parts = [buffer for key, buffer in buffers.items() if not key.endswith("steps")]
        if parts:
            statistics[f"{name}_statistics"] = torch.cat(parts)
            steps = torch.stack([buffer for key, buffer in buffers.items() if key.endswith("steps")])
            statistics[f"{name}_steps"] = steps.to(torch.int32)
    return {name: jnp.asarray(leaf.numpy().copy()) for name, leaf in statistics.items()}


@dataclasses.dataclass(frozen=True)
class StateDependentActor:
    """SAC's with `use_sde=True`."""

    latent_pi: Perceptron

    def apply(self, params, observation):
        latent = self.latent_pi.apply(params, observation)
        mean = jnp.clip(linear(params, "mu.0", latent), -2, 2)
        return StateDependentGaussian(mean, latent, params["log_std"], squash=True, learn_features=True)


@functools.partial(jax.jit, static_argnums=1)
def learn(settings, policy, state, batches, noise):
    return settings.updates(policy, settings.optimizers(), state, batches, noise)


def updated_by_both(case, num, dtype, monkeypatch):
    """Our state and metrics, and the stock model, after `num` updates from where three of SB3's had led."""
    name = case.partition(",")[0]
    of_sb3, of_ours = CASES[case]
    model = make_stock(name, of_sb3, dtype)
    rng = np.random.default_rng(0)
    algorithm, policy_class = OURS[name]
    settings = algorithm(**SHARED | of_ours)
    kind = "discrete" if name in DISCRETE else "box"
    policy = policy_class.of(ENV[kind], net_arch=ARCH, **OF_POLICY.get(name, ({}, {}))[1])
    if "use_sde" in of_sb3:
        policy = dataclasses.replace(policy, actor=StateDependentActor(policy.actor.latent_pi))
    in_dtype = np.float64 if dtype is torch.float64 else np.float32

    def one_round(num):
        batches = make_batches(rng, name in DISCRETE, num)
        noise = None if name in DISCRETE else rng.normal(size=(num, BATCH, 2))
        if "use_sde" in of_sb3:  # SB3 draws two, and uses the first
            noise = (rng.normal(size=(num, ARCH[-1], 2)),) * 2
        elif issubclass(algorithm, SAC):
            noise = (noise, rng.normal(size=(num, BATCH, 2)))
        batches, noise = jax.tree.map(
            lambda leaf: leaf.astype(in_dtype if leaf.dtype.kind == "f" else np.int32), (batches, noise)
        )
        in_order = noise if isinstance(noise, tuple) else () if noise is None else (noise,)
        state = as_state(settings, model) if model._n_updates else None
        drawn = [each for one in zip(*in_order) for each in one]
        if name == "CrossQ":  # which draws the next action first, and that of the actor where it is due
            is_due = [(model._n_updates + 1 + step) % settings.policy_delay == 0 for step in range(num)]
            drawn = [each for (own, following), due in zip(zip(*noise), is_due) for each in [following] + [own] * due]
        teach(model, batches, drawn, monkeypatch, dtype)
        return state, batches, noise

    one_round(3)
    model.logger.name_to_value.clear()
    state, metrics = learn(settings, policy, *one_round(num))
    logged = {key: each for key, each in metrics.items() if settings.num_averaged(key, 3, 3 + num)}
    return settings, state, logged, model


def assert_same(settings, state, metrics, model, tolerance):
    def compare(ours, theirs, what):
        for path, leaf in jax.tree_util.tree_leaves_with_path(theirs):
            got = functools.reduce(lambda tree, key: tree[key.key if hasattr(key, "key") else key.idx], path, ours)
            error = np.abs(np.asarray(got) - leaf).max() / max(np.abs(leaf).max(), 1e-3)
            assert error < tolerance, (what, jax.tree_util.keystr(path), error)

    expected = as_state(settings, model)
    for what in ("params", "targets"):
        compare(getattr(state, what), getattr(expected, what), what)
    for name, theirs in expected.optimizer_states.items():
        ours = state.optimizer_states[name]
        compare([ours.mu, ours.nu, ours.count], [theirs.mu, theirs.nu, theirs.count], name)
    assert state.num_updates == expected.num_updates
    logged = {key[6:]: value for key, value in model.logger.name_to_value.items() if key.startswith("train/")}
    assert set(metrics) == set(logged) - {"n_updates", "learning_rate"}
    compare(metrics, {name: np.asarray(logged[name]) for name in metrics}, "metrics")


# CrossQ's renormalisation takes the biases before it away again. In float32, their gradients are hardly more than
# rounding, and Adam makes whole steps of that. tests/bridge/translate/policies/test_off_policy_updates.py has a larger
# epsilon.
@pytest.mark.thorough(but=["DQN"])
@pytest.mark.parametrize("case", [case for case in CASES if "CrossQ" not in case])
def test_an_update_is_sb3s(case, monkeypatch):
    assert_same(*updated_by_both(case, 1, torch.float32, monkeypatch), tolerance=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    CASES,  # of the others one update, above
)
def test_a_hundred_updates_are_sb3s(case, monkeypatch, float64):
    assert_same(*updated_by_both(case, 100, torch.float64, monkeypatch), tolerance=1e-8)


@pytest.mark.thorough
def test_dqn_changes_its_target_at_the_steps_of_sb3():
    model = make_stock("DQN", {"target_update_interval": 6, "tau": 0.3, "learning_starts": 0}, torch.float32)
    model.n_envs = 2  # so that every third call is one
    settings = DQN(target_update_interval=6, tau=0.3)
    policy = DQNPolicy.of(ENV["discrete"], net_arch=ARCH)
    state = settings.create({"q_net": policy.init(jax.random.key(0))["q_net"]}, settings.optimizers())
    state = dataclasses.replace(
        state,
        params={"q_net": dict(read_parameters(model.q_net))},
        targets={"q_net_target": {name: 0 * leaf for name, leaf in read_parameters(model.q_net).items()}},
    )
    for parameter in model.q_net_target.parameters():
        parameter.data.zero_()
    for before, after in itertools.pairwise((0, 2, 3, 5, 11, 14)):
        state = settings.on_step(policy, state, jnp.int32(before), jnp.int32(after), num_envs=2)
        for _ in range(after - before):
            model._on_step()
        for name, leaf in read_parameters(model.q_net_target).items():
            np.testing.assert_allclose(state.targets["q_net_target"][name], leaf, rtol=1e-5, atol=1e-7)
    assert model._n_calls == 14


def read_parameters(network):
    return {name: jnp.asarray(leaf.detach().numpy().copy()) for name, leaf in network.named_parameters()}


@pytest.mark.parametrize("fraction", [0.0, 0.1, 1.0])
def test_exploration_falls_as_sb3s(fraction):
    settings = {"exploration_fraction": fraction, "exploration_initial_eps": 0.9}
    theirs = make_stock("DQN", settings, torch.float32).exploration_schedule
    for progress in (0.01, 0.1, 0.5, 1.0):
        np.testing.assert_allclose(DQN(**settings).exploration_rate(progress), theirs(1 - progress), rtol=1e-5)


@pytest.mark.thorough(but=["CrossQ"])
@pytest.mark.parametrize("name", OURS)  # whose policy is that of TD3
def test_networks_have_the_names_shapes_and_initialisation_of_sb3s(name):
    model = make_stock(name, {}, torch.float32)
    kind = "discrete" if name in DISCRETE else "box"
    policy = OURS[name][1].of(ENV[kind], net_arch=ARCH, **OF_POLICY.get(name, ({}, {}))[1])
    begun, statistics = jax.jit(policy.init)(jax.random.key(0)), read_statistics(model)
    for each, theirs in statistics.items():
        np.testing.assert_array_equal(begun.pop(each), theirs)
    for network, params in begun.items():
        theirs = read_parameters(getattr(model, network))
        assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, theirs)
        for key, leaf in params.items():
            if (
                weight := params.get(key.replace("bias", "weight"))
            ) is None or weight.ndim == 1:  # of a renormalisation
                np.testing.assert_array_equal(leaf, theirs[key])
                continue
            bound = weight.shape[1] ** -0.5
            assert 0.5 * bound < np.abs(leaf).max() <= bound or leaf.size < 4, key
