"""A small model of each algorithm of `specs.SPECS`, for many tests, so that they share their programs."""

import copy
import inspect

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

import bridge
from bridge import JaxVecEnv
from bridge.algorithms.specs import SPECS
from bridge.translate.pytorch.modules import read_parameters
from jaxenvs import TimeLimit
from tests.bridge import small_models
from tests.environments import Counter
from tests.masked_environments import GymnasiumLocks, Locks

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
ON_POLICY = {"n_steps": small_models.N_STEPS, "policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
OWN |= {"DDPG": OWN["TD3"], "A2C": {}}
OWN |= {name: {"batch_size": 32, "n_epochs": 2} for name in ("PPO", "MaskablePPO", "PQN")}
OWN["RecurrentPPO"] = OWN["MaskableRecurrentPPO"] = {
    "batch_size": 24,
    "n_epochs": 2,
    "policy_kwargs": {"net_arch": [8], "lstm_hidden_size": 8},
}
# Timesteps of a training with some updates: a multiple of those of an iteration.
STEPS = {name: 48 if spec.is_off_policy else 2 * small_models.ROLLOUT for name, spec in SPECS.items()}
KINDS = {name: spec.actions.lower() for name, spec in SPECS.items() if spec.actions}


class Walk(gymnasium.Env):
    """A point that drifts and is pushed; episodes end at the border, or after 9 steps."""

    def __init__(self, kind="box", observation="vector"):
        self.kind, self.observation = kind, observation
        self.action_space = (
            spaces.Discrete(3) if kind == "discrete" else spaces.Box(np.float32([-1, -3]), np.float32([2, 3]))
        )
        vector = spaces.Box(-9, 9, (2,), np.float32)
        self.observation_space = {
            "vector": vector,
            "dict": spaces.Dict({"a": vector, "b": spaces.Discrete(4)}),
            "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
            "goal": spaces.Dict({"observation": vector, "achieved_goal": vector, "desired_goal": vector}),
        }[observation]

    def _observe(self):
        vector = self.at.astype(np.float32)
        return {
            "vector": vector,
            "dict": {"a": vector, "b": self.count % 4},
            "image": np.full((36, 36, 1), 100 + 20 * vector[0], np.uint8),
            "goal": {"observation": vector, "achieved_goal": vector, "desired_goal": np.ones(2, np.float32)},
        }[self.observation]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.count = self.np_random.normal(size=2), 0
        return self._observe(), {}

    def step(self, action):
        push = np.array([action - 1.0, 0.5]) if self.kind == "discrete" else 0.3 * action
        self.at, self.count = self.at + 0.2 * push + 0.1, self.count + 1
        reward = float(-np.abs(self.at).sum())
        return self._observe(), reward, bool(np.abs(self.at).max() > 2), self.count >= 9, {}

    def compute_reward(self, achieved, desired, info):
        return -np.abs(achieved - desired).sum(axis=-1)


def make_env(name="DQN", n_envs=N_ENVS, length=5, limit=7, kind="box", seed=0):
    """Episodes that terminate after `length` steps, or are truncated after `limit`. On-policy, both of their own."""
    if name in ("PPO", "RecurrentPPO", "PQN"):
        return small_models.make_env(seed, env_kwargs={"max_episode_steps": 12})
    if not SPECS[name].is_off_policy:
        env = Locks() if SPECS[name].settings.MASKS else TimeLimit(Counter(9, "box", "box"), limit)
        return JaxVecEnv(env, small_models.N_ENVS, seed)
    return JaxVecEnv(TimeLimit(Counter(length, kind, KINDS[name]), limit), n_envs, seed)


def host_env(name):
    one = GymnasiumLocks if name.startswith("Maskable") else lambda: Walk(KINDS.get(name, "box"))
    return DummyVecEnv([one] * 4)


def make(name="DQN", env=None, package=bridge, policy="MlpPolicy", **settings):
    spec = SPECS[name]
    shared = SETTINGS if spec.is_off_policy else ON_POLICY
    if isinstance(policy, str):
        policy = policy.replace("Policy", f"{spec.policy_kind}Policy")
    noise = {"action_noise": OrnsteinUhlenbeckActionNoise(np.zeros(2), np.full(2, 0.3))} if name == "TD3" else {}
    env = make_env(name) if env is None else env
    # SB3 writes into policy_kwargs.
    return getattr(package, name)(policy, env, **copy.deepcopy({**shared, **OWN[name], **noise, **settings}))


def weights(model):
    """All weights of the policy in one vector."""
    return read_parameters(model.policy.parameters())


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
    if with_store and hasattr(model, "replay_buffer"):
        buffer, size = model.replay_buffer, model.replay_buffer.size()
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            state[name] = np.array(getattr(buffer, name)[:size])
        state["position"] = np.array(buffer.pos)
    return state


def state_of_rollouts(model):
    """All that a training of an on-policy algorithm changes, as arrays by name, with its rollout buffer."""
    buffer, state = model.rollout_buffer, state_of(model)
    state["last_episode_starts"] = np.array(model._last_episode_starts)
    names = ("actions", "rewards", "values", "log_probs", "advantages", "returns", "episode_starts")
    is_dict = isinstance(buffer.observations, dict)
    parts = {f"observations.{key}": each for key, each in buffer.observations.items()} if is_dict else {}
    return state | parts | {name: getattr(buffer, name) for name in names + (() if is_dict else ("observations",))}


def assert_equal(state, other, **tolerances):
    assert state.keys() == other.keys()
    for name, expected in other.items():
        if tolerances:
            np.testing.assert_allclose(state[name], expected, err_msg=name, **tolerances)
        else:
            np.testing.assert_array_equal(state[name], expected, err_msg=name)
