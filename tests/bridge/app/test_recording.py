"""`jaxenvs record` and `jaxenvs evaluate` of a run of one of our environments."""

import importlib.util

import numpy as np
import pytest
from PIL import Image

from bridge.app import recording
from bridge.results import video
from jaxenvs import cli
from tests.bridge.app.short_runs import error_of


@pytest.mark.thorough
def test_a_film_shows_the_first_episode_of_the_evaluation(run, tmp_path, capsys):
    film = tmp_path / "film.gif"
    cli.main(["record", str(run), "--out", str(film)])
    said = capsys.readouterr().out
    cli.main(["evaluate", str(run), "--episodes", "1"])
    gained = capsys.readouterr().out.split(": ")[1].split(" ")[0]
    assert said == f"Wrote {film}: return {gained}\n"
    with Image.open(film) as image:
        # Every second state, as it runs at 50 a second, and the last one.
        assert image.n_frames == 1 + -(-round(float(gained)) // 2)
        assert image.info["duration"] == 40
        assert image.info["loop"] == 0
        assert image.width == 400  # the environment draws 600


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("imageio_ffmpeg") is None, reason="needs moviepy")
def test_a_name_that_ends_with_mp4_gives_an_mp4(run, tmp_path):
    cli.main(["record", str(run), "--out", str(tmp_path / "film.mp4")])
    assert (tmp_path / "film.mp4").read_bytes()[4:8] == b"ftyp"
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]


def test_mistakes_are_one_line(run, tmp_path, capsys, monkeypatch):
    assert "must end with .gif or .mp4" in error_of(capsys, "record", str(run), "--out", str(tmp_path / "film.avi"))
    assert f"There is no run in {tmp_path}, because it has no config.json." in error_of(capsys, "record", str(tmp_path))
    for command in (["evaluate"], ["record"], ["train", "--resume"]):
        for absent in (tmp_path / "absent", run / "seed-9"):
            assert f"There is no such run: {absent}." in error_of(capsys, *command, str(absent))
    assert "--episodes" in error_of(capsys, "evaluate", str(run), "--episodes", "0")
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    assert "holds neither a model.zip nor a checkpoint.zip" in error_of(capsys, "evaluate", str(tmp_path))
    (tmp_path / "model.zip").write_bytes(b"no zip")
    assert "Cannot load" in error_of(capsys, "evaluate", str(tmp_path))
    monkeypatch.setattr(video.GymnasiumEnv, "render", lambda self: np.zeros((4, 4)))
    assert "uint8 array (height, width, 3), got float64 (4, 4)" in error_of(capsys, "record", str(run))


def test_the_folder_of_a_film_is_made(run, tmp_path):
    cli.main(["record", str(run), "--out", str(tmp_path / "new" / "film.gif")])
    assert (tmp_path / "new" / "film.gif").exists()


def test_seeds_are_those_of_numpy(run, capsys):
    for command in ("evaluate", "record"):
        assert "--seed must be an int from 0 to 4294967295" in error_of(capsys, command, str(run), "--seed", "-1")


def test_a_film_has_an_end(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(recording, "MOST_STEPS", 4)
    cli.main(["record", str(run), "--out", str(tmp_path / "film.gif")])
    assert "cut after 5 steps" in capsys.readouterr().out


SMALL = ["--num-envs", "2", "--total-timesteps", "64", "--hyperparameters", "n_steps=16", "n_epochs=1"]
RUNS = {
    "recurrent_ppo": ("CartPole-v1", "policy_kwargs={'lstm_hidden_size':8}"),
    "maskable_ppo": ("Taxi-v4", "policy_kwargs={'net_arch':[8]}"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", RUNS)
def test_what_is_legal_and_remembered_is_so_in_a_film(algorithm, tmp_path, capsys):
    env_id, policy_kwargs = RUNS[algorithm]
    run, film = tmp_path / "run", tmp_path / "film.gif"
    cli.main(["train", algorithm, env_id, *SMALL, policy_kwargs, "--out", str(run)])
    capsys.readouterr()
    cli.main(["evaluate", str(run), "--episodes", "1"])
    gained = capsys.readouterr().out.split(": ")[1].split(" ")[0]
    cli.main(["record", str(run), "--out", str(film)])
    assert capsys.readouterr().out == f"Wrote {film}: return {gained}\n"
