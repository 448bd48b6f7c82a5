"""What users write into a model from outside: weights, moments, learning rates, settings, buffers, modules."""

from __future__ import annotations

import copy
import zlib
from typing import Any

import numpy as np
import torch
from stable_baselines3.common import utils

from bridge.engine.acting import forget_graph
from bridge.stock.pytorch_pqn import LINEAR
from tests.differential.user_classes import extractors

NETWORKS = {
    "PPO": ("mlp_extractor", "value_net"),
    "A2C": ("mlp_extractor", "value_net"),
    "MaskablePPO": ("mlp_extractor", "value_net"),
    "RecurrentPPO": ("mlp_extractor", "lstm_critic"),
    "PQN": ("mlp_extractor",),
    "DQN": ("q_net", "q_net_target"),
    "QRDQN": ("quantile_net", "quantile_net_target"),
    "SAC": ("actor", "critic", "critic_target"),
    "TQC": ("actor", "critic", "critic_target"),
    "CrossQ": ("actor", "critic"),
    "TD3": ("actor", "critic", "actor_target", "critic_target"),
    "DDPG": ("actor", "critic", "actor_target", "critic_target"),
}
# Biases and weights that make actions the same whatever is drawn, and what may not be any number: nothing may be
# written into them.
CERTAIN = ("action_net.bias", "q_net.3.bias", "exploration_rate", "log_std", "ra_var", "steps")

# A function in older versions of SB3.
CONSTANT = getattr(utils, "ConstantSchedule", None) or utils.constant_fn


def networks(model: Any) -> tuple[str, ...]:
    return next(names for name, names in NETWORKS.items() if any(c.__name__ == name for c in type(model).__mro__))


def network(model: Any, number: int) -> Any:
    """One of a model's networks, as users come to it: `model.critic`, or `model.policy.value_net`."""
    names = networks(model)
    name = names[number % len(names)]
    return getattr(model, name) if hasattr(model, name) else getattr(model.policy, name)


def optimizers(model: Any) -> dict[str, Any]:
    """A model's optimisers, by the names of what has them."""
    found = {"policy": getattr(model.policy, "optimizer", None)}
    for name in ("actor", "critic"):
        found[name] = getattr(getattr(model, name, None), "optimizer", None)
    found["ent_coef"] = getattr(model, "ent_coef_optimizer", None)
    return {name: optimizer for name, optimizer in found.items() if optimizer is not None}


def kinds(model: Any) -> dict[str, type]:
    """Of optimisers: what is kept of one is nothing to another, and half of it is loaded before that is an error."""
    return {name: type(optimizer) for name, optimizer in optimizers(model).items()}


def has_own_optimizers(model: Any) -> bool:
    """Whether optimisers are those that are made where the model is loaded."""
    made = model.policy.optimizer_class
    return all(kind is made for name, kind in kinds(model).items() if name != "ent_coef")


@torch.no_grad()
def write(model: Any, what: str, *arguments: Any) -> None:
    """One of the functions below, by its name."""
    WRITES[what](model, *arguments)


def _scaled(values: torch.Tensor, how: str, number: float) -> torch.Tensor:
    if how == "fill":
        return torch.full_like(values, number)
    return {"scale": values * number, "add": values + number, "clamp": values.clamp(-abs(number), abs(number))}[how]


def weights(model: Any, net: int, way: str, how: str, number: float) -> None:
    """Change the weights of a network.

    Args:
      net: the number of the network.
      way: "inplace", "data" (put anew), "state_dict" (loaded), "set_parameters" (of the model).
      how: "fill", "scale", "add" or "clamp" with `number`.
    """
    module = network(model, net)
    if way in ("inplace", "data"):
        for name, parameter in module.named_parameters():
            if not any(certain in name for certain in CERTAIN):
                new = _scaled(parameter, how, number)
                if way == "inplace":
                    parameter.copy_(new)
                else:
                    parameter.data = new.clone()
    elif way == "state_dict":
        state = copy.deepcopy(module.state_dict())
        module.load_state_dict({name: _unless_certain(name, value, how, number) for name, value in state.items()})
    else:
        parameters = copy.deepcopy(model.get_parameters())
        prefix = networks(model)[net % len(networks(model))] + "."
        state = parameters["policy"]
        for name, value in state.items():
            if name.startswith(prefix):
                state[name] = _unless_certain(name, value, how, number)
        model.set_parameters(parameters)


def _unless_certain(name: str, value: torch.Tensor, how: str, number: float) -> torch.Tensor:
    return value if any(certain in name for certain in CERTAIN) else _scaled(value, how, number)


def polyak(model: Any, tau: float) -> None:
    """A soft update of the target by hand."""
    pairs = {"q_net": "q_net_target", "critic": "critic_target", "actor": "actor_target"}
    for name, target in pairs.items():
        if hasattr(model, target) and hasattr(model, name):
            for ours, theirs in zip(getattr(model, name).parameters(), getattr(model, target).parameters()):
                theirs.mul_(1 - tau).add_(ours, alpha=tau)


def moments(model: Any, number: int, how: str) -> None:
    """Change what an optimiser keeps: "clear" or "scale"; or "reload" it by its state dict."""
    optimizer = list(optimizers(model).values())[number % len(optimizers(model))]
    if how == "clear":
        optimizer.state.clear()
    elif how == "reload":
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and name != "step":
                    value.mul_(0.5)


def optimizer(model: Any, number: int, kind: str) -> None:
    """Put another optimiser in the place of one."""
    name = list(optimizers(model))[number % len(optimizers(model))]
    if name == "ent_coef":
        return
    owner = model.policy if name == "policy" else getattr(model, name)
    parameters = [p for group in owner.optimizer.param_groups for p in group["params"]]
    rate = owner.optimizer.param_groups[0]["lr"]
    owner.optimizer = {
        "adam": lambda: torch.optim.Adam(parameters, lr=rate, eps=1e-2),
        "sgd": lambda: torch.optim.SGD(parameters, lr=rate),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=rate, eps=1e-2),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=rate, eps=1e-2),
    }[kind]()


def rate(model: Any, way: str, number: float) -> None:
    """Change the learning rate: in the "groups", as "lr_schedule", as a "learning_rate" that is set up anew."""
    if way == "groups":
        for each in optimizers(model).values():
            for group in each.param_groups:
                group["lr"] = number
    elif way == "learning_rate":
        model.learning_rate = number
        model._setup_lr_schedule()
    else:
        model.lr_schedule = CONSTANT(number) if way == "constant" else LINEAR(number, 0.0, 1.0)


def freeze(model: Any, net: int, learns: bool) -> None:
    """Freeze a network, or thaw it."""
    network(model, net).requires_grad_(learns)


def setting(model: Any, name: str, value: Any) -> None:
    """Set an attribute of the model, if it has that."""
    if hasattr(model, name):
        setattr(model, name, CONSTANT(value) if name.startswith("clip_range") else value)


def stored(model: Any, name: str, value: float) -> None:
    """Write into what a buffer stores: an array of a replay buffer, returns or advantages of a rollout."""
    replay = getattr(model, "replay_buffer", None)
    if replay is not None:
        arrays = getattr(replay, name, None)
        for array in arrays.values() if isinstance(arrays, dict) else [arrays]:
            if replay.size() and array is not None:
                array[: replay.size()] = value
    elif model.rollout_buffer.full and hasattr(model.rollout_buffer, name):
        getattr(model.rollout_buffer, name)[...] = value


def cursor(model: Any, how: str) -> None:
    """Empty a replay buffer: "reset" it, or set its "pos"."""
    replay = getattr(model, "replay_buffer", None)
    if replay is None:
        return
    if how == "reset":
        replay.reset()
    else:
        replay.pos, replay.full = 0, False


def replace(model: Any, net: int, how: str) -> None:
    """Put another module in the place of a network: a "copy" in the model, in the "policy", in "both"; or a "layer"."""
    name = networks(model)[net % len(networks(model))]
    if how == "layer":
        module = network(model, net)
        for path, layer in module.named_modules():
            if (
                isinstance(layer, torch.nn.Linear)
                and path
                and not any((c.rpartition(".")[0] or c) in path for c in CERTAIN)
            ):
                new = torch.nn.Linear(layer.in_features, layer.out_features)
                begins_at = zlib.crc32(path.encode()) % 1000
                for parameter in new.parameters():
                    values = 0.5 * np.sin(begins_at + np.arange(parameter.numel()))
                    parameter.copy_(torch.from_numpy(values).view_as(parameter))
                parent = module.get_submodule(path.rpartition(".")[0])
                setattr(parent, path.rpartition(".")[2], new)
                return
        return
    forget_graph(model.policy)  # SB3's update leaves one in the actor, which PyTorch then refuses to copy
    new = copy.deepcopy(network(model, net))
    for parameter in new.parameters():
        parameter.mul_(0.9)
    if how in ("copy", "both") and hasattr(model, name):
        setattr(model, name, new)
    if how in ("policy", "both"):
        setattr(model.policy, name, new)


def assign(model: Any, net: int, how: str) -> None:
    """Put other tensors in the place of a network's parameters, which its optimiser does not know.

    Args:
      how: "copies" of all, or those of another part, so that two are "tied".
    """
    module = network(model, net)
    parts = [p for pair in (("policy_net", "value_net"), ("qf0", "qf1")) for p in pair if hasattr(module, p)]
    if how == "tied" and parts:
        getattr(module, parts[1]).load_state_dict(getattr(module, parts[0]).state_dict(), assign=True)
    else:
        module.load_state_dict(copy.deepcopy(module.state_dict()), assign=True)


def move(model: Any, how: str) -> None:
    """`policy.to`, and what users call beside it."""
    policy = model.policy
    {
        "to": lambda: policy.to("cpu"),
        "float": lambda: policy.float(),
        "train": lambda: policy.train(),
        "eval": lambda: policy.eval(),
        "reload": lambda: policy.load_state_dict(copy.deepcopy(policy.state_dict())),
    }[how]()


def environments(model: Any, name: str, value: int, index: Any) -> None:
    """Change a parameter of the environments."""
    model.get_env().set_attr(name, value, indices=index)


WRITES = {
    "weights": weights,
    "polyak": polyak,
    "moments": moments,
    "optimizer": optimizer,
    "rate": rate,
    "freeze": freeze,
    "setting": setting,
    "stored": stored,
    "replace": replace,
    "assign": assign,
    "move": move,
    "environments": environments,
    "scale": extractors.scale,
    "cursor": cursor,
}
