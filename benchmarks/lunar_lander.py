"""Time a whole PPO training on LunarLander-v3 with Stable-Baselines3 and with jaxenvs.sb3, from `python train.py` on.

    python -m benchmarks.lunar_lander [--parts "jaxenvs.sb3" ...] [--seeds 3] [--quick]

README.md shows its plot. Three seeds of all sides take an hour on two idle cores.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from benchmarks import common

TIMESTEPS, QUICK_TIMESTEPS = 1_000_000, 20_000
WINDOW, POINTS = 100, 60  # episodes of a mean, means of a curve
# What a side imports, and the backend of its environments.
SIDES = {
    "Stable-Baselines3": ["--package", "stable_baselines3"],
    "jaxenvs.sb3, Gymnasium's environment": ["--package", "jaxenvs.sb3", "--backend", "serial"],
    "jaxenvs.sb3": ["--package", "jaxenvs.sb3"],
}
NOTES = [
    "The sides are one script, benchmarks/peers/train_lunar_lander.py, with other imports. It has RL Baselines3 Zoo's "
    "hyperparameters, and 16 environments.",
    "Stable-Baselines3 makes Gymnasium's environment. jaxenvs.sb3 makes the same environment in JAX from the same id, "
    "or Gymnasium's with backend='serial'. Both pass render_mode='rgb_array', as SB3 does by default. With "
    "it, Gymnasium's LunarLander adds a body for each flame to Box2D's world, which takes most of the time.",
    "seconds: of a new process from its start, with imports and compilation, without a cache of compiled functions. "
    "PyTorch has one thread, with which Stable-Baselines3 is faster here.",
    f"return: the mean of the last {WINDOW} training episodes, as SB3's ep_rew_mean. curve: this mean at "
    f"{POINTS} points in time, in seconds.",
]


def train(side: str, seed: int, total_timesteps: int) -> dict[str, Any]:
    """Run the script in a new process, and return a row."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    options = [*SIDES[side], "--seed", seed, "--total-timesteps", total_timesteps]
    found = common.run_script("train_lunar_lander.py", *options, **own | {"OMP_NUM_THREADS": "1"})
    order = np.argsort(found["ends"], kind="stable")
    ends, returns = (np.asarray(found[name])[order] for name in ("ends", "returns"))
    curve = []
    for second in np.linspace(ends[0], found["seconds"], POINTS):
        latest = returns[: np.searchsorted(ends, second, side="right")][-WINDOW:]
        curve.append([round(float(second), 1), round(float(latest.mean()), 1)])
    row = {"side": side, "seed": seed, "seconds": round(found["seconds"], 1)}
    return row | {"CPU_seconds": round(found["CPU_seconds"], 1), "return": curve[-1][1], "curve": curve}


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__, parts=list(SIDES))
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each side; default 3")
    options = parser.options(argv)
    options.total_timesteps = QUICK_TIMESTEPS if options.quick else TIMESTEPS
    report = common.Report("lunar_lander", NOTES, options)
    for seed in range(options.seeds):
        for side in options.parts:
            if not report.has("trainings", side=side, seed=seed):
                report.add("trainings", [train(side, seed, options.total_timesteps)])
    report.finish()


if __name__ == "__main__":
    main()
