"""The settings of tuned.toml, and those of a copy that a user changed."""

import re

import pytest

from bridge.algorithms.specs import ALGORITHMS
from bridge.app.config import TrainingConfig
from bridge.app.tuned import FILE, TUNED, read
from jaxenvs import cli
from jaxenvs.cli import UserError
from tests.bridge.app.short_runs import TINY, error_of


def written(folder, text):
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_algorithms_are_those_of_the_command():
    assert TUNED.keys() <= ALGORITHMS.keys()


def test_a_table_like_another_has_its_settings_but_for_its_own(tmp_path):
    path = written(
        tmp_path,
        '[sac."One-v0, Other-v0"]\nn_timesteps = 100\ngamma = 0.5\n'
        '[tqc.One-v0]\nlike = "sac.Other-v0"\ngamma = 0.9\n[tqc.Other-v0]\nlike = "tqc.One-v0"\n',
    )
    one = {"n_timesteps": 100, "gamma": 0.5}
    other = one | {"gamma": 0.9}
    assert read(path) == {"sac": {"One-v0": one, "Other-v0": one}, "tqc": {"One-v0": other, "Other-v0": other}}


def test_a_changed_copy_is_trained_with(tmp_path, capsys):
    text = FILE.read_text()
    path = written(tmp_path, re.sub(r"(?s)(\[ppo\.CartPole-v1\].*?gamma = )0\.98", r"\g<1>0.5", text, count=1))
    config = TrainingConfig.resolve("ppo", "CartPole-v1", settings=path)
    assert config.hyperparameters["gamma"] == 0.5
    assert config.num_envs == 8
    command = ["train", "ppo", "CartPole-v1", *TINY, "--settings", str(path), "--out"]
    cli.main([*command, str(tmp_path / "run")])
    assert '"gamma": 0.5' in (tmp_path / "run" / "config.json").read_text()
    message = error_of(capsys, "train", "--config", str(tmp_path / "run" / "config.json"), "--settings", str(path))
    assert f"leave out --settings {path}" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gamma", "Cannot read settings from"),
        ("gamma = 0.5", "must hold only tables [algorithm.environment]"),
        ("[ppo]\ngamma = 0.5", "must hold only tables [algorithm.environment]"),
        ('[ppo.CartPole-v1]\nlike = "ppo.CartPole-v1"', "like must name an earlier table"),
        ('[ppo.CartPole-v1]\nlike = "ppo"', "like must name an earlier table"),
        ("[ppo.Acrobot-v1]\ngamma = 0.5", 'has no table [ppo."CartPole-v1"]'),
        ("[ppo.CartPole-v1]\ngama = 0.5", "Did you mean gamma"),
        ("[ppo.CartPole-v1]\ngamma = 2.0", "gamma must be between 0 and 1"),
        ("[ppo.CartPole-v1]\nn_envs = 0", "--num-envs must be an int of at least 1"),
    ],
)
def test_a_mistake_in_a_file_is_said(text, said, tmp_path):
    with pytest.raises(UserError, match=re.escape(said)):
        TrainingConfig.resolve("ppo", "CartPole-v1", settings=written(tmp_path, text))


def test_a_file_that_is_absent_is_said(tmp_path):
    with pytest.raises(UserError, match="Cannot read settings from"):
        read(tmp_path / "absent.toml")


def test_help_says_where_the_settings_are(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert FILE.name in re.sub(r"[\s│]+", "", capsys.readouterr().out)
