"""Train the agents of docs/pretrained/.

    python docs/pretrained.py [--only ppo-CartPole-v1 ...]

Each agent gets a folder with config.json (settings, seed and versions), model.zip, vec_normalize.pkl if it has one,
score.json (1,000 episodes) and agent.mp4. `jaxenvs train` trains them with seed 0: with the settings of
docs/pretrained.toml, or with RL-Zoo's.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bridge.app.tuned import read
from docs import films
from jaxenvs import cli
from jaxenvs.sb3 import evaluate, load_pretrained

FOLDER = Path(__file__).with_name("pretrained")
SETTINGS = Path(__file__).with_name("pretrained.toml")
FILES = ("config.json", "model.zip", "vec_normalize.pkl")
EPISODES, MOST_STEPS = 1000, 10_000
# Algorithm and environment, and further arguments.
AGENTS: dict[str, tuple[str, ...]] = {
    "ppo-CartPole-v1": (),
    "a2c-CartPole-v1": ("--total-timesteps", "500000"),
    "dqn-CartPole-v1": ("--hyperparameters", "policy_kwargs={'net_arch': [64, 64]}"),
    "ppo-Acrobot-v1": (),
    "ppo-MountainCar-v0": (),
    "dqn-MountainCar-v0": (),
    "ppo-MountainCarContinuous-v0": (),
    "ppo-Pendulum-v1": (),
    "sac-Pendulum-v1": ("--hyperparameters", "policy_kwargs={'net_arch': [64, 64]}"),
    "ppo-FrozenLake-v1": (),
    "ppo-FrozenLake8x8-v1": (),
    "dqn-CliffWalking-v1": ("--env-kwargs", "max_episode_steps=200"),  # an untrained agent would walk for ever
    "ppo-Taxi-v4": (),
    "ppo-Blackjack-v1": (),
    "ppo-MinAtar/Asterix-v1": (),
    "ppo-MinAtar/Breakout-v1": (),
    "ppo-MinAtar/Freeway-v1": (),
    "ppo-MinAtar/SpaceInvaders-v1": (),
    "ppo-LunarLander-v3": (),
    "ppo-BitFlipping-v0": (),
}


def main() -> None:
    """Train the agents, evaluate and record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=AGENTS, default=list(AGENTS), metavar="NAME")
    settings = read(SETTINGS)
    for name in parser.parse_args().only:
        algorithm, _, env_id = name.partition("-")
        arguments = [*AGENTS[name]]
        if env_id in settings.get(algorithm, {}):
            arguments += ["--hyperparams", str(SETTINGS)]
        folder = FOLDER / name.replace("/", "-")
        with tempfile.TemporaryDirectory() as run:
            cli.main(["train", algorithm, env_id, "--seed", "0", "--out", f"{run}/run", *arguments])
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for file in FILES:
                if (trained := Path(run, "run", file)).exists():
                    shutil.copy(trained, folder)
        compress(folder / "model.zip")
        model = load_pretrained(algorithm, env_id)
        score = evaluate(model, model.get_env(), EPISODES, max_steps=MOST_STEPS)
        scores = {"mean": round(score.mean, 2), "std": round(score.std, 2), "episodes": EPISODES}
        (folder / "score.json").write_text(json.dumps(scores) + "\n")
        films.record_agent(folder)
        size = (folder / "model.zip").stat().st_size / 1000
        print(f"{name}: {score}, {size:.0f} kB", flush=True)


def compress(path: Path) -> None:
    """Write a zip again with compression, which SB3 does not use, and without the moments of its optimizers."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, content in parts.items():
            file.writestr(name, without_moments(content) if name.endswith("optimizer.pth") else content)


def without_moments(content: bytes) -> bytes:
    """Return the file of an optimizer that has taken no step: its moments are twice as large as the network."""
    optimizer = torch.load(io.BytesIO(content), weights_only=True)
    file = io.BytesIO()
    torch.save(optimizer | {"state": {}}, file)
    return file.getvalue()


if __name__ == "__main__":
    main()
