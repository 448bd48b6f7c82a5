"""Distributions against Stable-Baselines3's, and their samples against their own log-probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable import distributions as contrib
from stable_baselines3.common import distributions as sb3

from jaxenvs.learn import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    SquashedGaussian,
    StateDependentGaussian,
)

BATCH = 7


def arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def discrete():
    (logits,) = arrays(0, (BATCH, 3))
    return Categorical(jnp.asarray(logits)), sb3.CategoricalDistribution(3).proba_distribution(torch.tensor(logits))


def multi_discrete(*nvec):
    nvec = nvec or (2, 3)
    (logits,) = arrays(1, (BATCH, sum(nvec)))
    reference = sb3.MultiCategoricalDistribution([*nvec]).proba_distribution(torch.tensor(logits))
    return MultiCategorical(jnp.asarray(logits), nvec), reference


IN_RUNS = (3, 3, 2, 2, 2, 3)


def multi_binary():
    (logits,) = arrays(2, (BATCH, 4))
    return Bernoulli(jnp.asarray(logits)), sb3.BernoulliDistribution(4).proba_distribution(torch.tensor(logits))


def gaussian():
    mean, log_std = arrays(3, (BATCH, 2), (2,))
    reference = sb3.DiagGaussianDistribution(2).proba_distribution(torch.tensor(mean), torch.tensor(log_std))
    return DiagonalGaussian(jnp.asarray(mean), jnp.asarray(log_std)), reference


def squashed():
    mean, log_std = arrays(3, (BATCH, 2), (BATCH, 2))
    reference = sb3.SquashedDiagGaussianDistribution(2).proba_distribution(torch.tensor(mean), torch.tensor(log_std))
    return SquashedGaussian(jnp.asarray(mean), jnp.asarray(log_std)), reference


def state_dependent(full_std=True, **settings):
    mean, latent, log_std = arrays(4, (BATCH, 2), (BATCH, 5), (5, 2 if full_std else 1))
    names = {"squash": "squash_output", "expln": "use_expln"}
    reference = sb3.StateDependentNoiseDistribution(
        2, full_std=full_std, **{names[name]: value for name, value in settings.items()}
    )
    reference.latent_sde_dim = 5
    reference.proba_distribution(torch.tensor(mean), torch.tensor(log_std), torch.tensor(latent))
    return StateDependentGaussian(*map(jnp.asarray, (mean, latent, log_std)), **settings), reference


def masked(make, reference, mask):
    """What `make` gives with illegal actions, beside sb3-contrib's of the same logits."""
    ours, _ = make()
    mask = np.broadcast_to(mask, (BATCH, len(mask))).copy()
    mask[:3] = 1  # in some rows all are legal
    logits = torch.tensor(np.asarray(ours.logits))
    if isinstance(ours, Bernoulli):  # of which sb3-contrib's has two logits for each
        logits = torch.stack([torch.zeros_like(logits), logits], -1).flatten(1)
    reference = reference.proba_distribution(logits)
    reference.apply_masking(mask)
    return ours.masked(jnp.asarray(mask)), reference


MASKED = {
    "discrete, masked": lambda: masked(discrete, contrib.MaskableCategoricalDistribution(3), [0, 1, 1]),
    "discrete, one legal": lambda: masked(discrete, contrib.MaskableCategoricalDistribution(3), [0, 0, 1]),
    "multi_discrete, masked": lambda: masked(
        multi_discrete, contrib.MaskableMultiCategoricalDistribution([2, 3]), [0, 1, 1, 1, 0]
    ),
    "multi_discrete in runs, masked": lambda: masked(
        lambda: multi_discrete(*IN_RUNS),
        contrib.MaskableMultiCategoricalDistribution([*IN_RUNS]),
        [0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 1],
    ),
    "multi_binary, masked": lambda: masked(
        multi_binary, contrib.MaskableBernoulliDistribution(4), [1, 1, 0, 1, 1, 0, 1, 1]
    ),
}
KINDS = {
    "discrete": discrete,
    "multi_discrete": multi_discrete,
    "multi_discrete in runs": lambda: multi_discrete(*IN_RUNS),
    "multi_binary": multi_binary,
    "gaussian": gaussian,
    "squashed": squashed,
    "state-dependent": state_dependent,
    "state-dependent, one deviation": lambda: state_dependent(full_std=False),
    "state-dependent, squashed": lambda: state_dependent(squash=True),
    "state-dependent, expln": lambda: state_dependent(expln=True),
    **MASKED,
}


@pytest.fixture(params=KINDS)
def pair(request):
    return KINDS[request.param]()


@pytest.mark.thorough(but=["state-dependent, one deviation", "state-dependent, squashed"])
def test_log_prob_is_sb3s(pair):
    ours, reference = pair
    action = ours.sample(ours.noise(jax.random.key(0), 1)[0])
    if getattr(ours, "squash", isinstance(ours, SquashedGaussian)):
        action = 0.9 * action  # next to 1, float32 has no digits left for the arctanh
    expected = reference.log_prob(torch.tensor(np.asarray(action, np.float32)))
    np.testing.assert_allclose(ours.log_prob(action), expected, rtol=2e-5, atol=2e-5)


def test_entropy_is_sb3s(pair):
    ours, reference = pair
    expected = reference.entropy()
    if expected is None:
        assert ours.entropy() is None
    else:
        np.testing.assert_allclose(ours.entropy(), expected, rtol=2e-5, atol=2e-5)


def test_mode_is_sb3s(pair):
    ours, reference = pair
    np.testing.assert_allclose(ours.mode(), reference.mode(), rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("n_legal", [1, 2, 3])
def test_the_entropy_of_equal_chances_is_the_logarithm_of_how_many_are_legal(n_legal):
    legal = jnp.arange(3)[None] < n_legal
    one = Categorical(jnp.zeros((1, 3))).masked(legal)
    three = MultiCategorical(jnp.zeros((1, 9)), (3, 3, 3)).masked(jnp.tile(legal, 3))
    np.testing.assert_allclose(one.entropy(), np.log(n_legal), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(three.entropy(), 3 * np.log(n_legal), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("make", [Categorical, lambda logits: MultiCategorical(logits, (4,))])
def test_where_nothing_is_legal_all_actions_are_as_likely(make):
    logits = jnp.tile(jnp.array([[3.0, 0.0, -3.0, 1.0]]), (1000, 1))
    none = make(logits).masked(jnp.zeros_like(logits))
    counts = np.bincount(np.ravel(none.sample(none.noise(jax.random.key(0), 1)[0])), minlength=4)
    torch.manual_seed(0)
    theirs = contrib.MaskableCategorical(logits=torch.tensor(np.asarray(logits)), masks=np.zeros((1000, 4)))
    for each in counts, np.bincount(theirs.sample(), minlength=4):
        assert ((each - 250) ** 2 / 250).sum() < 16.3  # chi-squared of 3 degrees, 0.1 %


@pytest.mark.thorough
def test_one_legal_action_among_a_thousand_that_were_unlikely_is_sure():
    """Whose chances, in float32, do not quite add up to one before."""
    logits = jnp.full((2, 992), -17.0).at[0, 0].set(0.0).at[1].set(0.0)
    sure = Categorical(logits).masked(jnp.arange(992)[None].repeat(2, 0) == 5)
    assert sure.log_prob(jnp.array([5, 5])).tolist() == [0, 0]
    assert sure.entropy().tolist() == [0, 0]
    assert (jnp.exp(sure.log_prob(jnp.array([0, 0]))) == 0).all()
    assert (jax.vmap(sure.sample)(sure.noise(jax.random.key(0), 100)) == 5).all()


def test_many_choices_are_no_more_code_than_two():
    """Code for each of 150 choices took 45 s to compile."""

    def operations(choices):
        def loss(logits):
            ours = MultiCategorical(logits, (5,) * choices)
            action = ours.sample(ours.noise(jax.random.key(0), 1)[0])
            return jnp.sum(ours.log_prob(action) + ours.entropy() + ours.mode().sum(-1))

        return jax.jit(jax.grad(loss)).lower(jnp.zeros((BATCH, 5 * choices))).as_text().count("\n")

    assert operations(150) == operations(3)


def test_equal_noise_gives_equal_actions_and_other_noise_others(pair):
    ours, _ = pair
    first, second = ours.noise(jax.random.key(0), 2)
    np.testing.assert_array_equal(ours.sample(first), ours.sample(first))
    assert not np.array_equal(ours.sample(first), ours.sample(second))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary"])
def test_discrete_actions_come_as_often_as_their_probability_says(kind):
    ours, _ = KINDS[kind]()
    samples = jax.vmap(ours.sample)(ours.noise(jax.random.key(1), 20_000))
    mean_log_prob = jax.vmap(ours.log_prob)(samples).mean(0)
    np.testing.assert_allclose(-mean_log_prob, ours.entropy(), atol=0.03)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["gaussian", "state-dependent"])
def test_gaussian_actions_spread_as_their_probability_says(kind):
    ours, reference = KINDS[kind]()
    samples = np.asarray(jax.vmap(ours.sample)(ours.noise(jax.random.key(1), 5_000)))
    np.testing.assert_allclose(samples.mean(0), reference.distribution.mean, atol=0.3)
    np.testing.assert_allclose(samples.std(0), reference.distribution.stddev, rtol=0.06)


@pytest.mark.thorough
def test_no_gradient_of_the_log_prob_flows_into_the_features_of_exploration():
    ours, _ = state_dependent()
    action = ours.mode() + 0.1
    by_latent = jax.grad(lambda x: StateDependentGaussian(ours.mean, x, ours.log_std).log_prob(action).sum())
    by_log_std = jax.grad(lambda x: StateDependentGaussian(ours.mean, ours.latent, x).log_prob(action).sum())
    assert not by_latent(ours.latent).any()
    assert by_log_std(ours.log_std).any()


def test_spaces_of_actions_have_their_distribution():
    from jaxenvs.learn import ActionHead

    head = ActionHead.of(spaces.Box(-2, np.array([1, 2], np.float32), (2,)))
    np.testing.assert_array_equal(head.to_env(jnp.array([[-3.0, 5.0]])), [[-2, 2]])
    assert ActionHead.of(spaces.Discrete(3, start=4)).to_env(jnp.array([1])).tolist() == [5]
    with pytest.raises(ValueError, match="action space must be a Discrete"):
        ActionHead.of(spaces.Text(3))
    with pytest.raises(ValueError, match=r"a MultiDiscrete \(flat and starting at 0\), .* got MultiDiscrete"):
        ActionHead.of(spaces.MultiDiscrete([2, 3], start=[3, -1]))
