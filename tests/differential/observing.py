"""What can be seen of a model from outside, as dicts of names and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from tests.differential.environments import two_observations
from tests.differential.operations import writing
from tests.differential.settings import PPOS, Setting
from tests.differential.user_classes import extractors

# Of the clock.
TIMES = ("time/fps", "time/time_elapsed")
# PPO's loss of actions that are certain is the mean of normalised advantages, 0. Where these are all the same, rounding
# is what is left of them to normalise, and any number up to 1 comes of it; which is in the sum of all losses too.
MEAN_ADVANTAGE, LOSS = "train/policy_gradient_loss", "train/loss"
# Divided by the variance of returns, which is rounding where they are equal: with episodes of one step they are.
EXPLAINED = "train/explained_variance"
# The ends of the names of running statistics.
STATISTICS = ("ra_mean", "ra_var")
COUNTERS = (
    "num_timesteps",
    "_total_timesteps",
    "_num_timesteps_at_start",
    "_current_progress_remaining",
    "_n_updates",
    "_episode_num",
    "_n_calls",
    "exploration_rate",
    "learning_rate",
    "n_envs",
)


class Drawn:
    """A value that depends on what was drawn: its kind alone is compared."""

    def __init__(self, value: Any) -> None:
        value = value.numpy() if isinstance(value, torch.Tensor) else value
        self.kind = (type(value).__name__, np.shape(value), str(getattr(value, "dtype", "")))

    def __repr__(self) -> str:
        return f"something drawn, {self.kind}"


def plain(value: Any, is_drawn: bool = False) -> Any:
    """A copy of a value in which arrays are NumPy's, or what kind they are if what they hold was drawn."""
    if isinstance(value, dict):
        return {str(key): plain(part, is_drawn) for key, part in value.items()}
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, list | tuple):
        return [plain(part, is_drawn) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return Drawn(value) if is_drawn else np.array(value)
    if isinstance(value, float) and is_drawn:
        return Drawn(value)
    return value if isinstance(value, bool | int | float | str | type(None)) else type(value).__name__


def weights(model: Any, setting: Setting) -> dict[str, Any]:
    found = {f"policy.{name}": value for name, value in state(model.policy, setting).items()}
    for name in writing.networks(model):
        # What the model has under a name of its own is the policy's, unless somebody has put another there.
        if hasattr(model, name) and getattr(model, name) is not getattr(model.policy, name):
            found |= {f"model.{name}.{key}": value for key, value in state(getattr(model, name), setting).items()}
    entropy = getattr(model, "log_ent_coef", None)
    if entropy is not None:
        found["log_ent_coef"] = entropy
    learns = {f"{name} learns": parameter.requires_grad for name, parameter in model.policy.named_parameters()}
    return {name: each if isinstance(each, Drawn) else plain(each) for name, each in (found | learns).items()} | {
        "training": model.policy.training
    }


def state(module: Any, setting: Setting) -> dict[str, Any]:
    """A state dict."""
    return unless_drawn(module.state_dict(), setting)


def unless_drawn(tensors: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Tensors by their names. What was drawn from a replay buffer is what running statistics are of."""
    drawn = () if setting.exact else STATISTICS
    return {name: Drawn(value) if name.endswith(drawn) else value for name, value in tensors.items()}


def moments(model: Any, setting: Setting) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for owner, optimizer in writing.optimizers(model).items():
        found[f"{owner}.kind"] = type(optimizer).__name__
        for group in optimizer.param_groups:
            found[f"{owner}.lr"] = group["lr"]
            for number, parameter in enumerate(group["params"]):
                state = optimizer.state.get(parameter, {})
                # Without a step yet, zeros are as good as nothing.
                for name, value in state.items() if state.get("step", 1) else ():
                    is_drawn = not setting.exact and name != "step"
                    found[f"{owner}.{number}.{name}"] = plain(value, is_drawn)
    return plain(found)


def gradients(model: Any, setting: Setting) -> dict[str, Any]:
    return {
        name: None if parameter.grad is None else plain(parameter.grad, not setting.exact)
        for name, parameter in model.policy.named_parameters()
    }


def progress(model: Any, setting: Setting) -> dict[str, Any]:
    return plain({name: getattr(model, name) for name in COUNTERS if hasattr(model, name)})


def counters(model: Any, setting: Setting) -> dict[str, Any]:
    found = progress(model, setting)
    if setting.rate != "decaying":
        found["lr_schedule"] = model.lr_schedule(0.5)
    found["calls"] = dict(sorted(model.calls.items()))
    episodes = model.ep_info_buffer
    found["episodes"] = None if episodes is None else [[episode["r"], episode["l"]] for episode in episodes]
    found["_last_obs"] = model._last_obs
    if setting.is_on_policy:  # of others it is of no use
        found["_last_episode_starts"] = model._last_episode_starts
        found["_last_lstm_states"] = getattr(model, "_last_lstm_states", None)
    return plain(found)


def buffer(model: Any, setting: Setting) -> dict[str, Any]:
    """What a buffer stores; of a replay buffer, from the oldest row on."""
    replay = getattr(model, "replay_buffer", None)
    if replay is not None:
        return replayed(replay, setting)
    rollout = getattr(model, "rollout_buffer", None)
    if rollout is None:
        return {}
    found = sizes(model, setting)
    for name in ("observations", "rewards", "episode_starts", "values", "returns", "advantages"):
        found[name] = _by_env(name, getattr(rollout, name), rollout)
    drawn = {name: _by_env(name, getattr(rollout, name), rollout) for name in ("actions", "log_probs")}
    return plain(found) | plain(drawn, not setting.exact)


def replayed(replay: Any, setting: Setting) -> dict[str, Any]:
    """What a replay buffer stores, from the oldest row on."""
    size, pos = replay.size(), replay.pos
    rows = np.roll(np.arange(size), -pos) if replay.full else np.arange(size)
    found = _replay_sizes(replay)
    for name in ("observations", "next_observations", "rewards", "dones", "timeouts"):
        found[name] = _rows(getattr(replay, name), rows)
    found["terminal"] = found["dones"] * (1 - found["timeouts"])
    if hasattr(replay, "looks"):
        found["looks"] = replay.looks
    return plain(found) | {"actions": plain(replay.actions[rows], not setting.exact)}


def _by_env(name: str, values: Any, rollout: Any) -> Any:
    """One row for each step of each environment, as Stable-Baselines3's update leaves most of them, but not all."""
    if isinstance(values, dict):
        return {key: _by_env(name, part, rollout) for key, part in values.items()}
    is_flat = rollout.generator_ready and name != "rewards"
    is_flat = is_flat and (name != "episode_starts" or hasattr(rollout, "hidden_states_pi"))
    values = values if is_flat else np.swapaxes(values, 0, 1)
    return values.reshape(rollout.buffer_size * rollout.n_envs, -1)


def sizes(model: Any, setting: Setting) -> dict[str, Any]:
    """Of a buffer, without a look at what it stores. Where the oldest row is of a full one is its own affair."""
    replay = getattr(model, "replay_buffer", None)
    if replay is not None:
        return _replay_sizes(replay)
    rollout = model.rollout_buffer
    return {"pos": int(rollout.pos), "full": bool(rollout.full), "size": int(rollout.size())}


def _replay_sizes(replay: Any) -> dict[str, Any]:
    is_full = bool(replay.full)
    return {"pos": None if is_full else int(replay.pos), "full": is_full, "size": int(replay.size())}


def sample(model: Any, setting: Setting) -> dict[str, Any]:
    replay = getattr(model, "replay_buffer", None)
    if replay is None:
        return {}
    drawn = replay.sample(2, env=model._vec_normalize_env)
    return {name: plain(value, not setting.exact) for name, value in drawn._asdict().items()}


def parameters(model: Any, setting: Setting) -> dict[str, Any]:
    """Of `get_parameters`, but for moments."""
    found = {name: plain(value) for name, value in model.get_parameters().items() if "optimizer" not in name}
    for name, value in found["policy"].items():
        if name.endswith(STATISTICS) and not setting.exact:
            found["policy"][name] = Drawn(value)
    return found


def predicted(model: Any, setting: Setting) -> dict[str, Any]:
    observation = two_observations(setting.observations)
    actions, state = model.predict(observation, deterministic=True)
    one, _ = model.predict(
        model.observation_space.sample() if setting.observations == "discrete" else _rows(observation, 0)
    )
    acts_on_drawn = setting.algorithm == "CrossQ" and not setting.exact
    return {"actions": plain(actions, acts_on_drawn), "state": plain(state), "one": plain(one, True)}


def _rows(values: Any, rows: Any) -> Any:
    return {name: part[rows] for name, part in values.items()} if isinstance(values, dict) else values[rows]


def pending(model: Any, setting: Setting) -> dict[str, Any]:
    """What was recorded for the next row of the log."""
    logger = getattr(model, "_logger", None)
    if logger is None:
        return {}
    # What is documented: without a log, metrics of one compiled run come before the rows of its episodes.
    is_lost = not (setting.is_on_policy or setting.env != "jax" or logger.output_formats)
    return row(
        {name: each for name, each in logger.name_to_value.items() if not (is_lost and "train/" in name)}, setting
    )


def row(values: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Of a log."""

    def seen(name: str, value: Any) -> Any:
        if name in TIMES or (name == LOSS and setting.algorithm in PPOS):
            return None
        if name == EXPLAINED and (setting.length == 1 or not value > -1000):
            return None
        if name == MEAN_ADVANTAGE and setting.algorithm in PPOS and setting.exact:
            return bool(abs(value) <= 1)
        is_drawn = not setting.exact and name.startswith("train/") and name != "train/n_updates"
        return plain(float(value), is_drawn)

    return {name: seen(name, value) for name, value in sorted(values.items())}


def statistics(model: Any, setting: Setting) -> dict[str, Any]:
    """Of a VecNormalize."""
    env = model.get_env()
    if not isinstance(env, VecNormalize):
        return {}
    found: dict[str, Any] = {"returns": env.ret_rms.mean, "of returns": env.ret_rms.var, "count": env.ret_rms.count}
    if not isinstance(env.obs_rms, dict):
        found |= {"observations": env.obs_rms.mean, "of observations": env.obs_rms.var}
    return plain(found)


def original(model: Any, setting: Setting) -> dict[str, Any]:
    """What a VecNormalize had before it normalised the last step."""
    env = model.get_env()
    if not isinstance(env, VecNormalize):
        return {}
    return plain({"reward": env.get_original_reward(), "observations": env.get_original_obs()})


def kept(model: Any, setting: Setting) -> dict[str, Any]:
    """What a DummyVecEnv keeps of its last step."""
    venv = getattr(model.get_env(), "unwrapped", None)
    if not isinstance(venv, DummyVecEnv):
        return {}
    found = {"observations": venv._obs_from_buf(), "rewards": venv.buf_rews, "dones": venv.buf_dones}
    return plain(found | {"infos": _infos(venv.buf_infos)})


def remembered(model: Any, setting: Setting) -> list[Any]:
    """What features extractors remember."""
    return plain(extractors.seen(model))


LOOKS = {
    "weights": weights,
    "moments": moments,
    "gradients": gradients,
    "counters": counters,
    "buffer": buffer,
    "sizes": sizes,
    "sample": sample,
    "parameters": parameters,
    "predicted": predicted,
    "pending": pending,
    "statistics": statistics,
    "progress": progress,
    "original": original,
    "remembered": remembered,
    "kept": kept,
}
# After a program, of each model. Gradients are nobody's to keep.
AT_THE_END = ("weights", "moments", "counters", "pending", "buffer", "statistics", "parameters", "predicted")
AT_THE_END += ("remembered",)
# Of a callback's locals: what holds nothing that was drawn, and what may.
SEEN = ("rewards", "dones", "new_obs", "infos", "n_steps", "num_collected_steps", "num_collected_episodes", "values")
SEEN += ("action_masks", "use_masking", "lstm_states", "episode_starts")
DRAWN = ("actions", "clipped_actions", "buffer_actions", "log_probs")


# What the loops of SB3 set after a step's callback. In the first step of a rollout, these are left from the rollout
# before, of which a ScheduledCallback sees only the ends of episodes.
AFTER_A_STEP = ("idx", "done", "done_", "terminal_obs", "terminal_lstm_state", "terminal_value")


def local(names: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """A callback's locals."""
    found = {name: "there" for name in names if name not in AFTER_A_STEP}
    for name in (*SEEN, *DRAWN):
        if name in names:
            is_drawn = name in DRAWN and not setting.exact
            found[name] = plain(_infos(names[name]) if name == "infos" else names[name], is_drawn)
    return found


def _infos(infos: Any) -> Any:
    def part(info: dict[str, Any]) -> dict[str, Any]:
        found = {name: value for name, value in dict(info).items() if name != "episode"}
        if "episode" in info:
            found["episode"] = [info["episode"]["r"], info["episode"]["l"]]
        return found

    return [part(info) for info in infos]
