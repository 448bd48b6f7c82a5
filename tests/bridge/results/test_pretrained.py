"""The pretrained agents of the repository load, earn what is written beside them, and are small."""

import json

import pytest
import stable_baselines3

import bridge
from bridge.results import pretrained
from docs.pretrained import AGENTS

FOLDERS = pretrained.pretrained_agents()
MOST_BYTES = 200_000


def test_there_is_an_agent_for_each_line_of_the_script():
    assert {folder.name for folder in FOLDERS.values()} == {*AGENTS}
    assert len(FOLDERS) >= 5


@pytest.mark.parametrize("name", FOLDERS, ids="-".join)
def test_files_are_complete_and_small(name):
    folder = FOLDERS[name]
    files = {path.name for path in folder.iterdir()}
    assert files - {"vec_normalize.pkl"} == {"config.json", "model.zip", "score.json", "agent.mp4"}
    config = json.loads((folder / "config.json").read_text())
    assert ("vec_normalize.pkl" in files) == bool(config["hyperparameters"]["normalize"])
    assert (config["algorithm"], config["env_id"]) == name
    assert json.loads((folder / "score.json").read_text())["episodes"] == 1000
    assert (folder / "model.zip").stat().st_size <= MOST_BYTES
    assert (folder / "agent.mp4").stat().st_size <= MOST_BYTES


@pytest.mark.thorough
@pytest.mark.parametrize("name", [("ppo", "CartPole-v1"), ("ppo", "Pendulum-v1")], ids="-".join)
def test_an_agent_earns_what_is_written(name):
    model = bridge.load_pretrained(*name, n_envs=2)
    written = json.loads((FOLDERS[name] / "score.json").read_text())
    score = bridge.evaluate(model, model.get_env(), 1000)
    assert score.mean == pytest.approx(written["mean"], abs=0.1 + 0.1 * written["std"])
    assert model.get_env().num_envs == 2
    stable_baselines3.PPO.load(FOLDERS[name] / "model.zip")


def test_mistakes_say_what_there_is(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"no pretrained agent ppo Nothing-v0\. There are: .*ppo CartPole-v1"):
        bridge.load_pretrained("ppo", "Nothing-v0")
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"docs/pretrained of the repository.*pip install -e"):
        bridge.load_pretrained("ppo", "CartPole-v1")
