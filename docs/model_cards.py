"""Write the agents of docs/pretrained/ as folders for the Hugging Face hub, each with a model card.

    python docs/model_cards.py cards [--only ppo-CartPole-v1 ...]

Each folder has the files of the agent, its video as replay.mp4, which the hub plays, and the card: README.md. The card
repeats config.json and score.json. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from bridge.algorithms.specs import ALGORITHMS

AGENTS = Path(__file__).with_name("pretrained")
CARD = """\
---
library_name: stable-baselines3
license: mit
tags:
- {env_id}
- deep-reinforcement-learning
- reinforcement-learning
- stable-baselines3
model-index:
- name: {name}
  results:
  - task:
      type: reinforcement-learning
      name: reinforcement-learning
    dataset:
      name: {env_id}
      type: {env_id}
    metrics:
    - type: mean_reward
      value: {score[mean]:.2f} +/- {score[std]:.2f}
      name: mean_reward
      verified: false
---

# {name} agent on {env_id}

The mean return of {score[episodes]:,} episodes with deterministic actions is {score[mean]:.2f} ± {score[std]:.2f}. The
agent was trained for {total_timesteps:,} steps with seed {seed} by `jaxenvs.sb3`, a compiled Stable-Baselines3.

## Use it

```python
{code}
```

`model.zip` is a zip of Stable-Baselines3: `{library}.{name}.load("model.zip")` loads it without jaxenvs.

## Train it again

```sh
jaxenvs train --config config.json --out again
```

| hyperparameter | value |
| --- | --- |
{hyperparameters}

Versions: {versions}.
"""
NORMALIZED = """
env = VecNormalize.load("vec_normalize.pkl", env)
env.training = env.norm_reward = False"""


def card(folder: Path) -> str:
    """Return the model card of the agent in a folder."""
    config, score = (json.loads((folder / name).read_text()) for name in ("config.json", "score.json"))
    spec = ALGORITHMS[config["algorithm"]]
    values = {name: value for name, value in config["hyperparameters"].items() if value is not None}
    return CARD.format(
        **{name: config[name] for name in ("env_id", "total_timesteps", "seed")},
        score=score,
        name=spec.name,
        library=spec.library,
        code=code(spec.name, config, (folder / "vec_normalize.pkl").exists()),
        hyperparameters="\n".join(f"| `{name}` | `{value}` |" for name, value in values.items()),
        versions=", ".join(" ".join(each) for each in config["versions"].items()),
    )


def code(name: str, config: dict[str, Any], is_normalized: bool) -> str:
    """Return code that loads the agent from the current folder and evaluates it."""
    imports = "from stable_baselines3.common.vec_env import VecNormalize\n\n" * is_normalized
    kwargs = f", env_kwargs={config['env_kwargs']}" if config["env_kwargs"] else ""
    return f"""{imports}from jaxenvs.sb3 import {name}, evaluate, make_vec_env

env = make_vec_env("{config["env_id"]}", n_envs=8{kwargs}){NORMALIZED * is_normalized}
model = {name}.load("model.zip", env=env)
print(evaluate(model, env, n_episodes=100, max_steps=10_000))"""


def main() -> None:
    """Write the folders that the command line names."""
    names = sorted(path.parent.name for path in AGENTS.glob("*/config.json"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--only", nargs="*", choices=names, default=names, metavar="NAME")
    given = parser.parse_args()
    for name in given.only:
        folder = given.out / name
        shutil.copytree(AGENTS / name, folder, dirs_exist_ok=True)
        (folder / "agent.mp4").rename(folder / "replay.mp4")
        (folder / "README.md").write_text(card(folder), encoding="utf-8")
        print(f"wrote {folder}")


if __name__ == "__main__":
    main()
