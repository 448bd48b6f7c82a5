"""Model cards say what is in config.json and score.json, in the format of the Hugging Face hub, and their code runs."""

import json
import re
import sys

import pytest
import yaml

from docs import model_cards

AGENTS = sorted(path.parent for path in model_cards.AGENTS.glob("*/config.json"))


@pytest.mark.parametrize("folder", AGENTS, ids=lambda folder: folder.name)
def test_a_card_has_the_hubs_metadata_and_the_agents_settings(folder):
    text = model_cards.card(folder)
    config, score = (json.loads((folder / name).read_text()) for name in ("config.json", "score.json"))
    _, header, body = text.split("---\n", 2)
    metadata = yaml.safe_load(header)
    assert metadata["library_name"] == "stable-baselines3"
    assert {config["env_id"], "reinforcement-learning"} <= set(metadata["tags"])
    (result,) = metadata["model-index"][0]["results"]
    assert result["dataset"]["type"] == config["env_id"]
    assert result["metrics"][0]["value"] == f"{score['mean']:.2f} +/- {score['std']:.2f}"
    assert f"{config['total_timesteps']:,} steps with seed {config['seed']}" in body
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*)` \|$", body, re.MULTILINE))
    assert rows == {name: str(value) for name, value in config["hyperparameters"].items() if value is not None}
    assert not re.search("https?://", text)  # the project has no address yet


def test_folders_are_complete_and_their_code_runs(tmp_path, monkeypatch, capsys):
    normalized = next(folder.name for folder in AGENTS if (folder / "vec_normalize.pkl").exists())
    monkeypatch.setattr(sys, "argv", ["model_cards.py", str(tmp_path), "--only", "ppo-CartPole-v1", normalized])
    model_cards.main()
    files = {path.name for path in (tmp_path / normalized).iterdir()}
    assert files == {"README.md", "config.json", "model.zip", "score.json", "replay.mp4", "vec_normalize.pkl"}
    capsys.readouterr()
    for name in ("ppo-CartPole-v1", normalized):
        monkeypatch.chdir(tmp_path / name)
        score = json.loads((tmp_path / name / "score.json").read_text())
        (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / name / "README.md").read_text(), re.DOTALL)
        exec(code, {})
        mean = float(capsys.readouterr().out.split(" ± ")[0])
        assert mean == pytest.approx(score["mean"], abs=0.1 + 0.5 * score["std"])
