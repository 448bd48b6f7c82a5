"""Off-policy models of one small shape for many tests, so that they share their programs."""

import copy
import inspect

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise

import bridge
from bridge import JaxVecEnv
from bridge.algorithms.specs import SPECS
from jaxenvs import TimeLimit
from tests.environments import Counter

N_ENVS = 2
SETTINGS = {"buffer_size": 200, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
OWN = {
    "DQN": {"learning_starts": 10, "train_freq": 4, "gradient_steps": 2, "target_update_interval": 12, "tau": 0.5},
    "SAC": {"learning_starts": 6, "train_freq": 3, "gradient_steps": -1, "n_steps": 2, "ent_coef": "auto_0.1"},
    "TD3": {"learning_starts": 6, "gradient_steps": 3},
    "QRDQN": {"learning_starts": 10, "gradient_steps": 2, "target_update_interval": 12, "learning_rate": 1e-3},
}
OWN["TQC"] = OWN["SAC"] | {"top_quantiles_to_drop_per_net": 3}
OWN["CrossQ"] = OWN["SAC"] | {"policy_delay": 2, "policy_kwargs": {"net_arch": [8], "renorm_warmup_steps": 20}}
if "n_steps" not in inspect.signature(stable_baselines3.SAC).parameters:  # before 2.7
    for name in ("SAC", "TQC", "CrossQ"):
        del OWN[name]["n_steps"]
KINDS = {name: spec.actions.lower() for name, spec in SPECS.items() if spec.is_off_policy}


def make_env(name="DQN", n_envs=N_ENVS, length=5, limit=7, kind="box", seed=0):
    """Episodes that terminate after `length` steps, or are truncated after `limit`."""
    return JaxVecEnv(TimeLimit(Counter(length, kind, KINDS[name]), limit), n_envs, seed)


def make(name="DQN", env=None, package=bridge, policy="MlpPolicy", **settings):
    noise = {"action_noise": OrnsteinUhlenbeckActionNoise(np.zeros(2), np.full(2, 0.3))} if name == "TD3" else {}
    env = make_env(name) if env is None else env
    # SB3 writes into policy_kwargs.
    return getattr(package, name)(policy, env, **copy.deepcopy({**SETTINGS, **OWN[name], **noise, **settings}))


def state_of(model, with_store=True):
    """All that a training changes, as arrays by name."""
    state = dict(model.policy.state_dict())
    optimizers = {"policy": model.policy.optimizer} if hasattr(model.policy, "optimizer") else {}
    optimizers |= {each: getattr(model, each).optimizer for each in ("actor", "critic") if hasattr(model, each)}
    if getattr(model, "ent_coef_optimizer", None) is not None:
        optimizers["log_ent_coef"], state["log_ent_coef"] = model.ent_coef_optimizer, model.log_ent_coef
    for name, optimizer in optimizers.items():
        for index, entry in optimizer.state_dict()["state"].items():
            state |= {f"{name}.{index}.{key}": value for key, value in entry.items()}
    state = {name: torch.as_tensor(value).detach().numpy().copy() for name, value in state.items()}
    if getattr(model, "key", None) is not None:
        state["key"] = model.key
    counters = ("num_timesteps", "_n_updates", "_episode_num", "_n_calls", "exploration_rate")
    state |= {name: np.array(getattr(model, name)) for name in counters if hasattr(model, name)}
    last = model._last_obs
    state["last_obs"] = np.concatenate(
        [np.ravel(part) for part in (last.values() if isinstance(last, dict) else [last])]
    )
    state["episodes"] = np.array([(each["r"], each["l"]) for each in model.ep_info_buffer])
    if with_store:
        buffer, size = model.replay_buffer, model.replay_buffer.size()
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            state[name] = np.array(getattr(buffer, name)[:size])
        state["position"] = np.array(buffer.pos)
    return state


def assert_equal(state, other, **tolerances):
    assert state.keys() == other.keys()
    for name, expected in other.items():
        if tolerances:
            np.testing.assert_allclose(state[name], expected, err_msg=name, **tolerances)
        else:
            np.testing.assert_array_equal(state[name], expected, err_msg=name)
