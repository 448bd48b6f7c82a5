"""Policies and networks of many kinds, and what they give in PyTorch and in JAX."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import policies
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn
from torch.nn import functional as F

from bridge.translate.policies.on_policy import export_policy
from bridge.translate.pytorch.modules import read_parameters

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
        distribution, value = network.apply(vector, observation)
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
    got = run(export_policy(policy), read_parameters(policy.parameters()), observation, action)
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
    """Network as users write it: blocks, pooling, in-place activations, flattening by size."""

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


def holds_torch(exported):
    """Return whether an exported network refers to PyTorch, apart from the folder bridge/translate/pytorch."""
    return b"torch" in pickle.dumps(exported).replace(b"bridge.translate.pytorch", b"")
