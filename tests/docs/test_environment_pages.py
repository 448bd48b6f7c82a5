"""The page of each environment shows its spaces, limit, threshold, a picture and settings, as they are in the code."""

import re
from os.path import normpath
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import jaxenvs
from bridge.app.tuned import TUNED, read
from docs import environment_pages

ENVIRONMENTS = {env.id: env for env in environment_pages.environments()}
PAGES = environment_pages.pages()
CHECKOUT = Path(__file__).parents[2]


def test_each_environment_has_a_page():
    assert sorted(ENVIRONMENTS) == jaxenvs.registered()
    assert {env.page for env in ENVIRONMENTS.values()} == {*PAGES}


def shown(space):
    """The way in which the pages write a space."""
    if isinstance(space, spaces.Box) and space.dtype == bool:
        return f"Box(0, 1, {space.shape}, bool)"
    if isinstance(space, spaces.Box):
        return f"Box {space.shape}"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(map(shown, space))})"
    if isinstance(space, spaces.Dict):
        goal, observation = shown(space["desired_goal"]), shown(space["observation"])
        return f"Dict: `observation` {observation}; `achieved_goal` and `desired_goal` {goal}"
    number = f"{space.n}" if np.ndim(space.n) == 0 else space.n
    return f"{type(space).__name__}({number})"


@pytest.mark.parametrize("id", ENVIRONMENTS)
def test_a_page_shows_what_the_environment_has(id):
    env, spec, page = jaxenvs.make(id), jaxenvs.spec(id), PAGES[ENVIRONMENTS[id].page]
    table = dict(re.findall(r"^\| ([\w ]+) \| (.*) \|$", page, re.MULTILINE))
    assert table["Action space"] == shown(env.action_space)
    assert table["Observation space"] == shown(env.observation_space)
    if "Freeway" not in id:  # which has its limit in the rules
        limit = f"{env.max_steps} steps" if isinstance(env, jaxenvs.TimeLimit) else "none"
        assert table["Time limit"] == limit
    threshold = table.get("Solved at", "").removeprefix("a mean return of ")
    assert (float(threshold) if threshold else None) == spec.reward_threshold
    for path in re.findall(r'(?:src|poster)="([^"]*)"', page):  # pages of the site are folders
        assert Path(normpath(CHECKOUT / "docs" / "environments" / "page" / path)).exists()
    (caption,) = re.findall(r"<figcaption>(.*)</figcaption>", page)
    assert caption.removeprefix("Film of ").startswith(ENVIRONMENTS[id].shown)
    assert ENVIRONMENTS[id].shown == id or not re.search("solved|best", caption)  # which is said of another one
    assert not re.search(r"^\| +\| +\|", page, re.MULTILINE)  # a table without a head
    assert all(
        heading in page for heading in ("## Description", "| parameter |", "## Settings that solve it", "## Reference")
    )
    zoos = [name for name, rows in TUNED.items() if id in rows]
    expected = zoos or [name for name, rows in read(environment_pages.OURS).items() if id in rows]
    assert re.findall(r"^\[(\w+)\.", page, re.MULTILINE) == expected


@pytest.mark.parametrize("id", ENVIRONMENTS)
def test_the_parameters_of_a_page_are_those_of_the_environment(id):
    page = PAGES[ENVIRONMENTS[id].page].partition("## Create")[0]
    (table,) = re.findall(r"^\| parameter \|.*\n\| --- .*\n((?:\|.*\n?)+)", page, re.MULTILINE)[:1]
    named = re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines()))
    assert {*named} <= {*jaxenvs.make(id).unwrapped.parameter_names}


@pytest.mark.thorough(but=["MinAtar/Asterix-v0", "ArmReach-v0"])
@pytest.mark.parametrize("id", ENVIRONMENTS)
def test_the_code_of_a_page_runs(id):
    *_, code = re.findall(r"```python\n(.*?)```", PAGES[ENVIRONMENTS[id].page], re.DOTALL)
    names = {}
    exec(code, names)
    assert names["vec_env"].num_envs == 8


def test_the_gallery_has_a_picture_of_each_game_with_its_name():
    gallery = environment_pages.gallery("environments.md")
    tiles = re.findall(r"^\[!\[\]\(([^)]+)\) (\S+)\]\(([^)]+)\)$", gallery, re.MULTILINE)
    assert len(tiles) == 18
    for picture, id, page in tiles:
        assert (CHECKOUT / "docs" / picture).exists()
        assert ENVIRONMENTS[id].page == page
    assert environment_pages.gallery("environments/minatar.md").count(".png") == 5
