"""A page for each environment of jaxenvs, made of its suite's page, its spec and its settings. docs/hooks.py calls it.

The order is Gymnasium's: a film, the spaces, the task, parameters, how to create and train it, settings that solve it,
and the reference. The site is built without JAX, so environments are not imported; tests/docs/test_environment_pages.py
compares the pages with them.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
TUNED = DOCS.parent / "bridge" / "app" / "tuned.toml"
OURS = DOCS / "pretrained.toml"  # settings of pretrained agents where TUNED has none
PRETRAINED = DOCS / "pretrained"
GALLERY = DOCS / "environments" / "gallery"  # docs/pictures.py draws it
BEST = {"CliffWalking-v1": "-13", "Taxi-v4": "7.93"}  # docs/environments/toy-text.md: Taxi's threshold is out of reach
# Variants that look like another environment, whose film their pages show.
LOOKS_LIKE = {
    "CartPole-v0": "CartPole-v1",
    "CliffWalkingSlippery-v1": "CliffWalking-v1",
    "LunarLanderContinuous-v3": "LunarLander-v3",
    "BitFlippingContinuous-v0": "BitFlipping-v0",
}
GYMNASIUM = "https://gymnasium.farama.org/environments"
SUITES = {
    "classic-control": f"{GYMNASIUM}/classic_control/",
    "toy-text": f"{GYMNASIUM}/toy_text/",
    "minatar": "https://github.com/kenjyoung/MinAtar",
    "box2d": f"{GYMNASIUM}/box2d/",
    "goals": "https://stable-baselines3.readthedocs.io/en/master/modules/her.html",
}
ROW = re.compile(r"^\| (`[^|]*-v\d`[^|]*) \|(.*)\|$", re.MULTILINE)
HEADER = re.compile(r"^\| id \|(.*)\|$", re.MULTILINE)
SAME_PAGE = re.compile(r"\]\((#[\w-]+)\)")


@dataclass(frozen=True)
class Environment:
    """An environment of a suite's page: its row of the table, and the section that describes it."""

    id: str
    suite: str
    row: dict[str, str]
    section: str

    @property
    def page(self) -> str:
        """Path of the page, which is beside the suite's page, so that links in the section lead to the same places."""
        return f"environments/{self.id.lower().replace('/', '-')}.md"

    @property
    def is_first(self) -> bool:
        """True unless it is a variant of another environment."""
        return not re.search(r"-v0$|8x8|Slippery|Continuous-v[0-9]$|Hardcore", self.id) or self.id in (
            "MountainCar-v0",
            "MountainCarContinuous-v0",
            "BitFlipping-v0",
            "ArmReach-v0",
        )

    @property
    def shown(self) -> str:
        """Id of the environment whose film the page shows."""
        return f"{self.id[:-1]}1" if self.suite == "minatar" else LOOKS_LIKE.get(self.id, self.id)

    @property
    def still(self) -> str:
        """Path of a picture, from the folder of the suites' pages."""
        name = f"{self.shown.rpartition('/')[2]}.png"
        return f"{'gallery' if (GALLERY / name).exists() else 'pictures'}/{name}"


def environments() -> list[Environment]:
    """Return the environments, suite by suite, in the order of the tables."""
    found = []
    for suite in SUITES:
        text = (DOCS / "environments" / f"{suite}.md").read_text()
        first = text.partition("\n## ")[0]  # a later table may have ids too
        columns = _cells(HEADER.search(first)[1])
        for row in ROW.finditer(first):
            ids = re.findall(r"`([^`]+-v\d)`", row[1])
            for index, id in enumerate(ids):
                values = [_of(index, len(ids), cell) for cell in _cells(row[2])]
                for version in [id, f"{id[:-1]}0"] if suite == "minatar" else [id]:
                    found.append(Environment(version, suite, dict(zip(columns, values)), _section(text, id)))
    return found


def pages() -> dict[str, str]:
    """Return the text of each page, by its place in docs/."""
    settings = _read(TUNED), _read(OURS)
    return {env.page: _page(env, *settings) for env in environments()}


def gallery(page: str) -> str:
    """Return a grid of captioned pictures that link to the pages of environments: all, or those of a suite's page."""
    lines = []
    for env in environments():
        if page in ("environments.md", f"environments/{env.suite}.md") and env.is_first:
            folder = "environments/" if page == "environments.md" else ""
            picture = f"![]({folder}{env.still})"
            lines.append(f"[{picture} {env.id}]({folder}{Path(env.page).name})")
    return "\n".join(['<div class="gallery" markdown>', "", *lines, "", "</div>"])


def best_agent(id: str) -> Path | None:
    """Return the folder of the pretrained agent with the highest mean return on an environment, if there is one."""
    scores = {}
    for path in PRETRAINED.glob("*/score.json"):
        if json.loads(path.with_name("config.json").read_text())["env_id"] == id:
            scores[path.parent] = json.loads(path.read_text())["mean"]
    return max(scores, key=lambda folder: scores[folder], default=None)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def _of(index: int, number: int, cell: str) -> str:
    """Return the part of a cell for one of several ids, if it has a part for each."""
    parts = cell.split(", ")
    return parts[index] if number > 1 and len(parts) == number else cell


def _section(text: str, id: str) -> str:
    """Return the section whose heading the id begins with, the longest of several."""
    name = id.removeprefix("MinAtar/")
    sections = re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    matching = [(title, body) for title, body in sections if name.startswith(title)]
    return max(matching, key=lambda each: len(each[0]), default=("", ""))[1].strip()


def _page(env: Environment, tuned: dict[str, Any], ours: dict[str, Any]) -> str:
    suite = f"{env.suite}.md"
    section = SAME_PAGE.sub(rf"]({suite}\1)", env.section)
    text = re.sub(r"^!\[[^]]*\]\([^)]*\)\s*", "", section, flags=re.MULTILINE)  # pictures of parity
    if env.suite == "minatar":
        text = _minatar(env)
    return "\n\n".join(
        [
            # Variants of an environment share most of their text.
            f"---\ntitle: {env.id}\nsearch:\n  boost: {4 if env.is_first else 2}\n---",
            f"# {env.id}",
            _film(env),
            _table(env),
            f"## Description\n\n{text}",
            _use(env),
            _solved(env, tuned, ours),
            _reference(env),
        ]
    )


def _film(env: Environment) -> str:
    """Return the film of the best agent on the environment, or a picture, above its name."""
    agent, still = best_agent(env.shown), f"../{env.still}"  # HTML has addresses of the site, whose pages are folders
    if agent is None:
        return f'<figure><img src="{still}" alt=""><figcaption>{env.shown}</figcaption></figure>'
    algorithm, score = agent.name.partition("-")[0].upper(), json.loads((agent / "score.json").read_text())
    solved = f", solved at {env.row['solved at']}" if env.row.get("solved at") else ""
    solved = f", the best policy has {BEST[env.id]}" if env.id in BEST else solved
    name, solved = (env.id, solved) if env.shown == env.id else (f"Film of {env.shown}", "")
    caption = f"{name}, an agent of {algorithm}: mean return {score['mean']:.4g}{solved}"
    film = f"../../{agent.relative_to(DOCS).as_posix()}/agent.mp4"
    attributes = "autoplay loop muted playsinline controls"
    return f"""<figure>
<video src="{film}" poster="{still}" {attributes}></video>
<figcaption>{caption}</figcaption>
</figure>"""


def _table(env: Environment) -> str:
    """Return the table at the top of the page: spaces, limit and threshold."""
    row = env.row
    if env.suite == "minatar":
        actions = "Discrete(6)" if env.id.endswith("v0") else row["actions"]
        observation = f"Box(0, 1, (10, 10, {row['channels']}), bool)"
        limit = "2500 steps, part of the rules" if "Freeway" in env.id else "none"
        rows = {"Action space": actions, "Observation space": observation, "Time limit": limit}
    else:
        observation = row.get("observation") or row["`observation`"]
        if env.suite == "goals":
            goal = observation if row["goal"] == "the same" else row["goal"]
            observation = f"Dict: `observation` {observation}; `achieved_goal` and `desired_goal` {goal}"
        rows = {"Action space": row["action"], "Observation space": observation}
        rows["Time limit"] = f"{row['limit']} steps" if row["limit"] else "none"
        if row.get("solved at"):
            rows["Solved at"] = f"a mean return of {row['solved at']}"
    head = f'| Create | `jaxenvs.make("{env.id}")` |'  # a table of Markdown has a head
    return "\n".join([head, "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())])


def _minatar(env: Environment) -> str:
    name = env.id.removeprefix("MinAtar/").partition("-")[0]
    actions = "only those that do something in the game" if env.id.endswith("1") else "all six of MinAtar"
    return f"""* **Action**: {actions}.
* **Observation**: a grid of ten by ten cells, with a channel for each kind of object.
* **Reward**: {env.row["reward"]}.
* **End**: {env.row["end"]}.

[The complete rules of {name}](minatar.md#{name.lower()})

| parameter | default | |
| --- | --- | --- |
| `sticky_action_prob` | 0.1 | probability that the last action is repeated; can be changed at any time |
| `difficulty_ramping` | True | whether the game becomes faster; static |"""


def _use(env: Environment) -> str:
    return f"""## Create, train and record

```python
import jaxenvs
from jaxenvs.sb3 import make_vec_env

env = jaxenvs.make("{env.id}")  # pure functions: env.reset(key), env.step(state, action)
vec_env = make_vec_env("{env.id}", n_envs=8, seed=0)  # for Stable-Baselines3
```

```sh
jaxenvs train {_algorithm(env)} {env.id} --out runs/agent
jaxenvs record runs/agent --out agent.mp4
```

Parameters are keyword arguments: `jaxenvs.make("{env.id}", name=value)` or `make_vec_env(..., env_kwargs={{...}})`. In
Python, `record` of `jaxenvs.sb3` [records a video](../videos.md)."""


def _algorithm(env: Environment) -> str:
    """Return an algorithm of the command that can learn the environment."""
    if (agent := best_agent(env.id)) is not None:
        return agent.name.partition("-")[0]
    return "sac" if env.id in ("ArmReach-v0", "BitFlippingContinuous-v0") else "ppo"


def _solved(env: Environment, tuned: dict[str, Any], ours: dict[str, Any]) -> str:
    """Return the settings that are known to work."""
    found = {name: rows[env.id] for name, rows in tuned.items() if env.id in rows}
    origin = "These settings are RL Baselines3 Zoo's. `jaxenvs train` takes them by itself."
    if not found:
        found = {name: rows[env.id] for name, rows in ours.items() if env.id in rows}
        train = f"jaxenvs train {next(iter(found), '')} {env.id} --hyperparams docs/pretrained.toml"
        origin = f"These are ours: `{train}` takes them, as for the [pretrained agent](../pretrained.md)."
    if not found:
        text = "No settings are published for it. Start from the algorithm's defaults, and [tune](../tuning.md) them."
        if env.suite == "goals":
            text = "[Hindsight](../off-policy.md#hindsight) shows a training with `HerReplayBuffer` that solves it."
        return f"## Settings that solve it\n\n{text}"
    blocks = [_toml(name, env.id, rows) for name, rows in found.items()]
    return "\n\n".join(["## Settings that solve it", origin, *blocks])


def _toml(algorithm: str, id: str, settings: dict[str, Any]) -> str:
    lines = [f"{name} = {_value(value)}" for name, value in settings.items()]
    return "\n".join([f'```toml title="{algorithm}"', f'[{algorithm}."{id}"]', *lines, "```"])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(each)}" for name, each in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Read settings as bridge.app.tuned does, which needs JAX: algorithm, environment, settings."""
    read: dict[str, dict[str, dict[str, Any]]] = {}
    for algorithm, rows in tomllib.loads(path.read_text()).items():
        for names, row in rows.items():
            above, _, env_id = row.get("like", "").partition(".")
            settings = (read[above][env_id] if above else {}) | {name: row[name] for name in row if name != "like"}
            for each in names.split(", "):
                read.setdefault(algorithm, {})[each] = settings
    return read


def _reference(env: Environment) -> str:
    rules = f"The [original]({SUITES[env.suite]}) has the same rules"
    rules = "It has no original" if env.id == "ArmReach-v0" else rules
    return f"""## Reference and parity

{rules}: [parity, pictures and the other environments of the suite]({env.suite}.md). The
[reference](../reference/environments.md) documents the class and its parameters."""
