"""Train with stock Stable-Baselines3 what `jaxenvs train` trains, and write what it writes, except for the plot.

It writes model.zip, the returns of all episodes, TensorBoard's logs and, every ten seconds and in the end, a checkpoint
with the replay buffer. With --eval-freq it writes best_model.zip and evaluations.npz. It prints the return of 100
episodes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import stable_baselines3
from stable_baselines3.common import utils
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

LINEAR = getattr(utils, "LinearSchedule", None) or utils.get_linear_fn  # the latter in older versions
CHECKPOINT_SECONDS = 10.0
N_EPISODES, EVALUATED_AT_ONCE = 100, 16


class Checkpoints(BaseCallback):
    """Callback that periodically writes a checkpoint before a rollout, and one at the end."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.next = folder, time.monotonic() + CHECKPOINT_SECONDS

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if time.monotonic() >= self.next:
            self._on_training_end()
            self.next = time.monotonic() + CHECKPOINT_SECONDS

    def _on_training_end(self) -> None:
        self.model.save(self.folder / "checkpoint.zip")
        if getattr(self.model, "replay_buffer", None) is not None:
            self.model.save_replay_buffer(self.folder / "replay_buffer.pkl")  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm")
    parser.add_argument("env_id")
    parser.add_argument("--total-timesteps", type=int, required=True)
    parser.add_argument("--eval-freq", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--settings", type=json.loads, default={}, help="of a table of tuned.toml, as JSON")
    options = parser.parse_args()
    out: Path = options.out
    settings: dict[str, Any] = {
        name: LINEAR(float(value.removeprefix("lin_")), 0.0, 1.0) if str(value).startswith("lin_") else value
        for name, value in options.settings.items()
        if name != "n_timesteps"
    }
    n_envs = settings.pop("n_envs", 1)
    algorithm = getattr(stable_baselines3, options.algorithm.upper())
    env = make_vec_env(options.env_id, n_envs, seed=0, monitor_dir=str(out))
    model = algorithm("MlpPolicy", env, seed=0, device="cpu", tensorboard_log=str(out / "tensorboard"), **settings)
    callbacks: list[BaseCallback] = [Checkpoints(out)]
    if options.eval_freq:
        evaluated_on = make_vec_env(options.env_id, 5, seed=n_envs)
        freq = max(options.eval_freq // n_envs, 1)
        paths: dict[str, Any] = {"log_path": str(out), "best_model_save_path": str(out)}
        callbacks.append(EvalCallback(evaluated_on, eval_freq=freq, **paths, verbose=0))
    model.learn(options.total_timesteps, callback=callbacks)
    model.save(out / "model.zip")
    fresh = make_vec_env(options.env_id, EVALUATED_AT_ONCE, seed=n_envs)
    mean, std = evaluate_policy(model, fresh, N_EPISODES)
    print(f"Return of {N_EPISODES} episodes: {mean:.2f} ± {std:.2f}")


if __name__ == "__main__":
    main()
