"""Policies of Stable-Baselines3 in JAX: the same numbers and gradients, or a refusal that says why."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common import policies
from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy, MultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, MlpExtractor
from torch import nn
from torch.nn import functional as F

from bridge.translate.modules import trace
from bridge.translate.policies import NotCompilable, export_policy, read_parameters, write_parameters

BATCH = 5
VECTOR = spaces.Box(-3.0, 3.0, (6,))
PAIR = spaces.Box(np.array([-1.0, -2.0], "float32"), np.array([1.0, 3.0], "float32"))
IMAGE = spaces.Box(0, 255, (2, 36, 36), np.uint8)
SMALL_IMAGE = spaces.Box(0, 255, (1, 8, 8), np.uint8)
DICT = spaces.Dict({"number": spaces.Discrete(3), "image": IMAGE, "vector": VECTOR})


def make(observation=VECTOR, action=PAIR, cls=ActorCriticPolicy, **settings):
    """A policy whose parameters are all different from where they start, as after training."""
    settings = {"net_arch": {"pi": [8], "vf": [7]}, **settings}
    torch.manual_seed(0)
    policy = cls(observation, action, lambda _: 1e-3, **settings)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return policy


def batch(space):
    """Observations, or actions as samples of a distribution: numbers that float32 holds exactly."""
    rng = np.random.default_rng(0)
    if isinstance(space, spaces.Dict):
        return {key: batch(part) for key, part in space.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=BATCH)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(space.nvec, size=(BATCH, *space.shape))
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=(BATCH, *space.shape)).astype(np.int8)
    if space.dtype == np.uint8:
        return rng.integers(256, size=(BATCH, *space.shape), dtype=np.uint8)
    return rng.uniform(-0.9, 0.9, (BATCH, *space.shape)).astype(np.float32)


def in_torch(policy, observation, action):
    observation = policies.obs_as_tensor(observation, torch.device("cpu"))
    value, log_prob, entropy = policy.evaluate_actions(observation, torch.as_tensor(action))
    weights = torch.linspace(1, 2, BATCH, dtype=value.dtype)
    loss = (weights * log_prob).sum() + (weights**2 * value.flatten()).sum()
    if entropy is not None:
        loss = loss + (weights.flip(0) * entropy).sum()
    policy.zero_grad()
    loss.backward()
    mode = policy.get_distribution(observation).mode()
    gradient = np.concatenate([parameter.grad.numpy().ravel() for parameter in policy.parameters()])
    results = {"value": value.flatten(), "log_prob": log_prob, "entropy": entropy, "mode": mode}
    results = {name: part.detach().numpy() for name, part in results.items() if part is not None}
    return {**results, "gradient": gradient}


@functools.partial(jax.jit, static_argnums=0)
def run(network, vector, observation, action):
    def loss(vector):
        distribution, value = network.apply(network.unravel(vector), observation)
        log_prob, entropy = distribution.log_prob(action), distribution.entropy()
        weights = jnp.linspace(1, 2, BATCH, dtype=value.dtype)
        total = (weights * log_prob).sum() + (weights**2 * value).sum()
        if entropy is not None:
            total = total + (weights[::-1] * entropy).sum()
        return total, {"value": value, "log_prob": log_prob, "entropy": entropy, "mode": distribution.mode()}

    gradient, results = jax.grad(loss, has_aux=True)(vector)
    return {**{name: part for name, part in results.items() if part is not None}, "gradient": gradient}


def assert_same(policy, dtype="float32", tolerance=5e-6):
    """Value, log-probabilities, entropy, mode and all gradients, here and in torch."""
    observation, action = batch(policy.observation_space), batch(policy.action_space)
    if isinstance(policy.action_space, spaces.Box | spaces.MultiBinary):
        action = action.reshape(BATCH, -1).astype(dtype)  # as rollout buffers have them
    expected = in_torch(policy, observation, action)
    got = run(export_policy(policy), read_parameters(policy), observation, action)
    assert got.keys() == expected.keys()
    for name, ours in got.items():
        if name != "mode" or isinstance(policy.action_space, spaces.Box):
            assert ours.dtype == dtype, name
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(ours, expected[name], rtol=tolerance, atol=tolerance * scale, err_msg=name)


# --- User-written networks ----------------------------------------------------------------------------------------


class Extractor(BaseFeaturesExtractor):
    def __init__(self, space, features_dim=4):
        super().__init__(space, features_dim)
        self.linear = nn.Linear(6, features_dim)

    def forward(self, observations):
        return torch.relu(self.linear(observations))


class ResidualCNN(Extractor):
    """What people write: blocks, pooling, in-place activations, flattening by size."""

    def __init__(self, space, features_dim=4):
        super().__init__(space, features_dim)
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.block = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding="same", groups=2),
            nn.GELU(),
            nn.Conv2d(4, 4, 3, padding=2, dilation=2, bias=False),
        )
        self.last = nn.Conv2d(4, 3, (3, 2), stride=(1, 2))
        self.norm = nn.LayerNorm(6)

    def forward(self, observations):
        x = self.first(observations)
        x = F.relu(x + self.block(x), inplace=True)
        x = F.avg_pool2d(F.silu(self.last(x)), (2, 1))
        return self.linear(self.norm(x.view(x.size(0), -1)))


class Combined(Extractor):
    """Loops over the keys of observations and of modules."""

    def __init__(self, space, features_dim=12):
        super().__init__(space, features_dim)
        self.linear = nn.Linear(6, 4)
        self.extractors = nn.ModuleDict({"vector": nn.Linear(6, 4), "number": nn.Linear(3, 4)})
        self.scale = nn.Parameter(torch.full((4,), 0.5))

    def forward(self, observations):
        assert isinstance(observations, dict)
        encoded = [self.extractors[key](x) for key, x in observations.items() if key in self.extractors]
        image = observations["image"].flatten(2).mean(dim=2)
        encoded.append(self.linear(torch.cat([image, image, image], dim=-1)) * self.scale)
        return torch.cat(encoded, dim=1)


class Functional(Extractor):
    """Calls functions and methods where it could have modules."""

    def __init__(self, space, features_dim=6):
        super().__init__(space, features_dim)
        self.slope = nn.Parameter(torch.tensor([0.3]))
        self.final = nn.Linear(3, features_dim)

    def forward(self, observations, scale=2.0):
        x = self.linear(observations.float())[:, :3] / scale - 0.1 * observations[..., 3:]
        x = F.layer_norm(F.prelu(x, self.slope), (3,)) + x.pow(2).sum(dim=1, keepdim=True)
        x = F.leaky_relu(x, 0.2) * torch.sigmoid(x).unsqueeze(1).squeeze(1) + (1 - F.softmax(x, dim=-1))
        x = torch.stack([x, -x.abs(), x.clamp(-0.5, 0.5)], dim=2).transpose(1, 2).reshape(x.shape[0], -1)
        x = F.elu(x).view(-1, 3, 3).permute(0, 2, 1).mean(2) @ self.final.weight[:3]
        return F.linear(F.dropout(x, 0.0, self.training), self.final.weight, self.final.bias)


def extractor(cls, observation=VECTOR, **settings):
    return make(observation, features_extractor_class=cls, **settings)


POLICIES = {
    "categorical": lambda: make(action=spaces.Discrete(3)),
    "multi categorical": lambda: make(action=spaces.MultiDiscrete([2, 3, 4])),
    "bernoulli": lambda: make(action=spaces.MultiBinary(3)),
    "gaussian": lambda: make(),
    "without hidden layers": lambda: make(net_arch=[]),
    "of other depths": lambda: make(net_arch={"pi": [5, 6, 7]}, activation_fn=nn.ReLU),
    "gsde": lambda: make(use_sde=True),
    "gsde of few parameters": lambda: make(use_sde=True, full_std=False, use_expln=True, log_std_init=-0.1),
    "gsde squashed": lambda: make(use_sde=True, squash_output=True, use_expln=True),
    "on a matrix": lambda: make(spaces.Box(-1.0, 1.0, (2, 3), np.float64), spaces.Box(-1.0, 1.0, (2, 2))),
    "on discrete": lambda: make(spaces.Discrete(4)),
    "on multi discrete": lambda: make(spaces.MultiDiscrete([2, 3])),
    "on multi binary": lambda: make(spaces.MultiBinary(3)),
    "on images": lambda: make(IMAGE, cls=ActorCriticCnnPolicy, features_extractor_kwargs={"features_dim": 8}),
    "on images as they are": lambda: make(IMAGE, normalize_images=False, log_std_init=3.0),
    "on images by two extractors": lambda: make(SMALL_IMAGE, share_features_extractor=False),
    "on a dict": lambda: make(DICT, cls=MultiInputActorCriticPolicy, features_extractor_kwargs={"cnn_output_dim": 8}),
    "a residual cnn": lambda: extractor(ResidualCNN, SMALL_IMAGE),
    "two of a user's extractors": lambda: extractor(Extractor, share_features_extractor=False),
    "an extractor of a dict": lambda: extractor(Combined, DICT),
    "an extractor of functions": lambda: extractor(Functional),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_equals_torch_in_float64(kind, x64, monkeypatch):
    policy = POLICIES[kind]().double()
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # by which SB3 encodes observations
    assert_same(policy, "float64", 1e-12)


@pytest.mark.parametrize("kind", ["categorical", "gaussian", "gsde squashed", "on images"])
def test_equals_torch_in_float32(kind):
    assert_same(POLICIES[kind]())


ACTIVATIONS = [
    *(nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.PReLU(), nn.ELU(0.7), nn.CELU(0.7), nn.SELU(), nn.SiLU(), nn.Mish()),
    *(nn.GELU(), nn.GELU("tanh"), nn.Tanh(), nn.Hardtanh(-1, 2), nn.Tanhshrink(), nn.Sigmoid(), nn.LogSigmoid()),
    *(nn.Hardsigmoid(), nn.Softplus(), nn.Softplus(2.0, 3.0), nn.Softsign(), nn.Softmax(1), nn.LogSoftmax(-1)),
    *(nn.Identity(), nn.Dropout(0.5)),
]


@pytest.mark.parametrize("module", ACTIVATIONS, ids=str)
def test_activations_equal_torch_at_corners_too(module, x64):
    module.double().eval()
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    params = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    points = np.array([[-30.0, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 6, 30]])
    x = torch.tensor(points, requires_grad=True)
    expected = module(x)
    (expected * torch.arange(12)).sum().backward()
    program = trace(nn.Sequential(module), names)
    got, pull_back = jax.vjp(lambda x: program(params, x), points)
    np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-12, atol=1e-12)
    (gradient,) = pull_back(jnp.broadcast_to(jnp.arange(12.0), got.shape))
    # PyTorch itself differentiates these two with constants in float32.
    tolerance = 1e-7 if isinstance(module, nn.CELU | nn.Hardsigmoid) else 1e-12
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=tolerance, atol=tolerance)


def test_discrete_observations_come_with_or_without_an_axis():
    policy = make(spaces.Discrete(4))
    network, vector, observation = export_policy(policy), read_parameters(policy), np.array([0, 3])
    flat, column = (network.apply(vector, shape)[1] for shape in (observation, observation[:, None]))
    np.testing.assert_array_equal(flat, column)


# --- Actions ------------------------------------------------------------------------------------------------------


def test_box_actions_are_clipped():
    network = export_policy(make())
    np.testing.assert_array_equal(
        network.to_env(jnp.array([[-5.0, -5.0], [0.5, 2.5], [5.0, 5.0]])), [[-1, -2], [0.5, 2.5], [1, 3]]
    )


def test_squashed_actions_are_unscaled():
    policy = make(action=spaces.Box(-2.0, 4.0, (2, 1)), use_sde=True, squash_output=True)
    action = np.array([[-1.0, 0.25], [0.0, 1.0]], np.float32)
    expected = policy.unscale_action(action.reshape(-1, 2, 1))
    np.testing.assert_allclose(export_policy(policy).to_env(jnp.asarray(action)), expected, rtol=1e-6)


def test_discrete_actions_stay():
    network = export_policy(make(action=spaces.Discrete(3)))
    np.testing.assert_array_equal(network.to_env(jnp.array([2, 0])), [2, 0])


# --- What a network is --------------------------------------------------------------------------------------------


def test_policies_of_one_architecture_share_programs():
    one, other = make(), make()
    with torch.no_grad():
        other.log_std.add_(1)
    assert export_policy(one) == export_policy(other)
    assert hash(export_policy(one)) == hash(export_policy(other))
    traced = []
    value = jax.jit(lambda network, vector, x: traced.append(0) or network.apply(vector, x)[1], static_argnums=0)
    for policy in (one, other):
        value(export_policy(policy), read_parameters(policy), batch(VECTOR))
    assert len(traced) == 1


@pytest.mark.parametrize("settings", [{"net_arch": [9]}, {"activation_fn": nn.ReLU}, {"use_sde": True}])
def test_policies_of_other_architectures_differ(settings):
    assert export_policy(make(**settings)) != export_policy(make())


def test_network_holds_nothing_of_torch():
    assert b"torch" not in pickle.dumps(export_policy(POLICIES["on a dict"]()))


def test_parameters_have_the_names_and_shapes_of_torch():
    policy = make()
    params = export_policy(policy).unravel(read_parameters(policy))
    expected = {name: parameter.detach().numpy() for name, parameter in policy.named_parameters()}
    assert params.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(params[name], value)


def test_gradient_of_unravelling_is_a_concatenation():
    policy = make()
    network = export_policy(policy)
    gradient = jax.grad(lambda vector: sum((part**2).sum() for part in network.unravel(vector).values()))
    primitives = {equation.primitive.name for equation in jax.make_jaxpr(gradient)(read_parameters(policy)).eqns}
    assert "concatenate" in primitives
    assert not primitives & {"pad", "scatter", "dynamic_update_slice", "add_any"}


def test_exporting_changes_nothing_in_the_policy():
    policy = make()
    policy.set_training_mode(True)
    policy.value_net.eval()
    before = [(module.training, set(vars(module))) for module in policy.modules()]
    export_policy(policy)
    assert [(module.training, set(vars(module))) for module in policy.modules()] == before


# --- Parameters ---------------------------------------------------------------------------------------------------


def test_writing_what_was_read_changes_no_bit():
    policy, other = make(), make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    pointers = [parameter.data_ptr() for parameter in other.parameters()]
    write_parameters(other, jnp.asarray(read_parameters(policy)))
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), other.parameters()))
    assert [parameter.data_ptr() for parameter in other.parameters()] == pointers


def test_what_was_read_has_its_own_memory():
    policy = make()
    vector = read_parameters(policy)
    kept = vector.copy()
    with torch.no_grad():
        policy.log_std.add_(1)
    np.testing.assert_array_equal(vector, kept)


def test_writing_refuses_another_number_of_parameters():
    policy = make()
    size = read_parameters(policy).size
    with pytest.raises(ValueError, match=rf"vector of {size} numbers, got the shape \({size + 1},\)"):
        write_parameters(policy, np.zeros(size + 1))


# --- Dropout and other modes --------------------------------------------------------------------------------------


def network_of(*layers):
    """A class of extractors of some layers."""

    class Layers(BaseFeaturesExtractor):
        def __init__(self, space):
            super().__init__(space, 6)
            self.layers = nn.Sequential(*layers)

        def forward(self, observations):
            return self.layers(observations)

    return Layers


def forward_of(function):
    """A class of extractors with a layer `self.linear` and some forward."""
    return type(
        "Custom",
        (Extractor,),
        {"forward": function, "__init__": lambda self, space: Extractor.__init__(self, space, 6)},
    )


@pytest.mark.parametrize(
    ("cls", "active"),
    [
        (network_of(nn.Linear(6, 6), nn.Dropout(0.1)), True),
        (network_of(nn.Linear(6, 6), nn.Dropout(0.0)), False),
        (forward_of(lambda self, x: F.dropout(self.linear(x), 0.1, self.training)), True),
        (forward_of(lambda self, x: self.linear(2 * x if self.training else x)), True),
        (forward_of(lambda self, x: self.linear(x)), False),
    ],
)
def test_tells_whether_training_mode_is_different(cls, active):
    policy = extractor(cls)
    assert export_policy(policy).has_active_dropout is active
    policy.set_training_mode(False)
    assert_same(policy)


# --- Refusals -----------------------------------------------------------------------------------------------------


def remember(self, x):
    self.seen = x
    return self.linear(x)


def overwrite(self, x):
    y = self.linear(x)
    return F.relu(y, inplace=True) + y


def branch(self, x):
    return self.linear(x) if x.sum() > 0 else x


def with_buffer(self, x):
    self.register_buffer("mean", torch.zeros(6), persistent=False) if "mean" not in self._buffers else None
    return self.linear(x - self.mean)


class OwnForward(ActorCriticPolicy):
    def evaluate_actions(self, obs, actions):
        return super().evaluate_actions(obs, actions)


class OwnMlp(ActorCriticPolicy):
    def _build_mlp_extractor(self):
        self.mlp_extractor = type("OwnMlpExtractor", (MlpExtractor,), {})(6, self.net_arch, self.activation_fn)


def changed(change, **settings):
    """A policy after a change."""

    def build():
        policy = make(**settings)
        change(policy)
        return policy

    return build


REFUSALS = {
    "own method": (lambda: make(cls=OwnForward), "OwnForward has a method evaluate_actions"),
    "own mlp": (lambda: make(cls=OwnMlp), "must be SB3's MlpExtractor, got a OwnMlpExtractor"),
    "batch norm": (
        lambda: extractor(network_of(nn.BatchNorm1d(6))),
        r"features_extractor\.layers\.0 \(BatchNorm1d\)",
    ),
    "unknown module": (
        lambda: extractor(network_of(nn.Unflatten(1, (1, 6)), nn.Flatten())),
        r"features_extractor\.layers\.0 \(Unflatten\)",
    ),
    "branch on data": (lambda: extractor(forward_of(branch)), r"features_extractor \(Custom\): symbolically traced"),
    "unknown function": (lambda: extractor(forward_of(lambda self, x: self.linear(x).cumsum(1))), r"cumsum\(\)"),
    "unknown argument": (
        lambda: extractor(forward_of(lambda self, x: self.linear(torch.sub(x, x, alpha=2)))),
        "no translation to JAX: .*sub",
    ),
    "implicit dimension": (
        lambda: extractor(forward_of(lambda self, x: F.softmax(self.linear(x)))),
        "no translation to JAX: 'NoneType'",
    ),
    "buffer": (lambda: extractor(forward_of(with_buffer)), "a Tensor that is no parameter"),
    "sets attribute": (
        lambda: extractor(forward_of(remember)),
        r"features_extractor \(Custom\) sets its attribute 'seen'",
    ),
    "overwrites": (lambda: extractor(forward_of(overwrite)), "in-place relu overwrites a tensor"),
    "always drops": (lambda: extractor(forward_of(lambda self, x: F.dropout(self.linear(x)))), "even in evaluation"),
    "unused parameter": (
        lambda: extractor(forward_of(lambda self, x: x)),
        r"features_extractor\.linear\.weight has no part",
    ),
    "hook": (
        changed(lambda policy: policy.value_net.register_forward_hook(lambda *_: None)),
        r"value_net \(Linear\) has hooks",
    ),
    "put-in forward": (
        changed(lambda policy: setattr(policy.value_net, "forward", torch.relu)),
        r"value_net \(Linear\) has hooks or a forward",
    ),
    "frozen": (changed(lambda policy: policy.log_std.requires_grad_(False)), "log_std is frozen"),
    "mixed dtypes": (changed(lambda policy: policy.value_net.double()), r"got \['torch.float32', 'torch.float64'\]"),
    "float64": (changed(lambda policy: policy.double()), r"got \['torch.float64'\]"),
    "partial optimizer": (
        changed(lambda policy: setattr(policy, "optimizer", torch.optim.Adam([policy.log_std]))),
        "train all parameters",
    ),
    "own distribution": (
        changed(lambda policy: setattr(policy, "action_dist", policies.make_proba_distribution(spaces.Discrete(2)))),
        "CategoricalDistribution over Box",
    ),
    "observations from 1": (lambda: make(spaces.Discrete(3, start=1)), "observations of Discrete"),
    "actions from 1": (lambda: make(action=spaces.Discrete(3, start=1)), "start at 0"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refuses_with_a_reason(kind):
    build, message = REFUSALS[kind]
    with pytest.raises(NotCompilable, match=message):
        export_policy(build())


def test_a_refusal_leaves_the_policy_as_it_was():
    policy = extractor(forward_of(remember))
    with pytest.raises(NotCompilable):
        export_policy(policy)
    assert not hasattr(policy.features_extractor, "seen")
