"""The command with an environment of the user's, in a file of theirs: module:id."""

import pytest
from PIL import Image

from jaxenvs import cli
from tests.bridge.app.short_runs import error_of

SETTINGS = ["--num-envs", "2", "--total-timesteps", "128", "--hyperparameters", "n_epochs=1", "n_steps=32"]


def test_it_is_listed_trained_evaluated_and_filmed(own_environment, tmp_path, capsys):
    cli.main(["list", own_environment])
    assert f"{own_environment}-v0" in capsys.readouterr().out
    env_id = f"{own_environment}:{own_environment}-v0"
    cli.main(["train", "ppo", env_id, *SETTINGS])
    trained = capsys.readouterr().out.splitlines()[-1]
    run = f"runs/{own_environment}-v0-ppo-0"
    cli.main(["evaluate", run])
    assert capsys.readouterr().out.strip() == trained
    cli.main(["record", run, "--episodes", "2"])
    assert "return" in capsys.readouterr().out
    with Image.open(tmp_path / run / "agent.gif") as film:
        assert film.format == "GIF"
        assert film.n_frames > 2


def test_a_parameter_that_is_a_tuple_is_one_after_a_config_json_too(own_environment, capsys):
    env_id = f"{own_environment}:{own_environment}-v0"
    cli.main(["train", "ppo", env_id, *SETTINGS, "--env-kwargs", "size=(7, (8, 9))", "--out", "run"])
    trained = capsys.readouterr().out.splitlines()[-1]
    cli.main(["train", "--resume", "run"])
    assert capsys.readouterr().out.splitlines()[-1] == trained


def test_without_a_time_limit_an_evaluation_ends_all_the_same(own_environment, capsys, monkeypatch):
    monkeypatch.setattr("bridge.app.evaluation.MOST_STEPS", 30)
    endless = f"{own_environment}:{own_environment}Endless-v0"
    cli.main(["train", "ppo", endless, *SETTINGS, "--env-kwargs", "goal=9.0", "--out", "run"])
    assert "(4 of them cut after 30 steps)" in capsys.readouterr().out
    assert "cannot be drawn: define Walk.draw" in error_of(capsys, "record", "run")


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("no_such_module:Walk-v0", "No module 'no_such_module'"),
        ("{own}:Wlk-v0", "{own} was imported, but does not register the environment. No environment 'Wlk-v0'"),
        ("{own}-broken:Walk-v0", "NameError: name 'missing' is not defined"),
        ("{own}_importing:Walk-v0", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_what_is_wrong_with_a_module_is_one_line(env_id, said, own_environment, tmp_path, capsys):
    (tmp_path / f"{own_environment}-broken.py").write_text("import jax\nmissing\n")
    (tmp_path / f"{own_environment}_importing.py").write_text("import no_such_module\n")
    message = error_of(capsys, "train", "ppo", env_id.replace("{own}", own_environment))
    assert said.replace("{own}", own_environment) in message
    if "missing" in said:
        assert "broken.py, line 2" in message
