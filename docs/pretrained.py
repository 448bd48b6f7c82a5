"""Train the agents of docs/pretrained/.

    python docs/pretrained.py [--only ppo-CartPole-v1 ...]

Each agent gets a folder with config.json (settings, seed and versions), model.zip, vec_normalize.pkl if it has one,
score.json (1,000 episodes) and agent.mp4. `jaxenvs train` trains them, in about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import zipfile
from pathlib import Path

from jaxenvs import cli
from jaxenvs.sb3 import evaluate, load_pretrained, record

FOLDER = Path(__file__).with_name("pretrained")
FILES = ("config.json", "model.zip", "vec_normalize.pkl")
EPISODES, MOST_STEPS = 1000, 10_000
SMALL = "policy_kwargs={'net_arch': [64, 64]}"  # a zip holds the optimizer too
# RL-Zoo's settings, where it has some; a table needs no hidden layer.
TABLE = ("n_steps=64", "batch_size=512", "n_epochs=4", "gamma=0.98", "learning_rate=lin_0.02", "ent_coef=0.01")
TABLE = (*TABLE, "policy_kwargs={'net_arch': []}")
AGENTS: dict[str, tuple[str, ...]] = {
    "ppo-CartPole-v1": (),
    "ppo-Acrobot-v1": (),
    "ppo-MountainCar-v0": (),
    "ppo-MountainCarContinuous-v0": (),
    "ppo-Pendulum-v1": (),
    "ppo-LunarLander-v3": (),
    "ppo-FrozenLake-v1": ("--num-envs", "64", "--total-timesteps", "500000", "--hyperparameters", *TABLE),
    "a2c-CartPole-v1": ("--total-timesteps", "500000"),
    "dqn-CartPole-v1": ("--hyperparameters", SMALL),
    "sac-Pendulum-v1": ("--hyperparameters", SMALL),
}


def main() -> None:
    """Train the agents, evaluate and record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=AGENTS, default=list(AGENTS), metavar="NAME")
    for name in parser.parse_args().only:
        algorithm, _, env_id = name.partition("-")
        with tempfile.TemporaryDirectory() as run:
            cli.main(["train", algorithm, env_id, "--seed", "0", "--out", f"{run}/run", *AGENTS[name]])
            shutil.rmtree(FOLDER / name, ignore_errors=True)
            (FOLDER / name).mkdir(parents=True)
            for file in FILES:
                if (trained := Path(run, "run", file)).exists():
                    shutil.copy(trained, FOLDER / name)
        compress(FOLDER / name / "model.zip")
        model = load_pretrained(algorithm, env_id)
        score = evaluate(model, model.get_env(), EPISODES, max_steps=MOST_STEPS)
        scores = {"mean": round(score.mean, 2), "std": round(score.std, 2), "episodes": EPISODES}
        (FOLDER / name / "score.json").write_text(json.dumps(scores) + "\n")
        record(model, FOLDER / name / "agent.mp4", max_steps=500)
        size = (FOLDER / name / "model.zip").stat().st_size / 1000
        print(f"{name}: {score}, {size:.0f} kB", flush=True)


def compress(path: Path) -> None:
    """Write a zip again with compression, which SB3 does not use."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, content in parts.items():
            file.writestr(name, content)


if __name__ == "__main__":
    main()
