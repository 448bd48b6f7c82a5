"""Films of states."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxenvs
from tests.environments import Counter

Image = pytest.importorskip("PIL.Image")
ENV = jaxenvs.CartPole()


@pytest.fixture(scope="module")
def states() -> Any:
    """Twenty of an episode, as a scan stacks them."""

    @jax.jit
    def run() -> Any:
        return jax.lax.scan(lambda s, _: (ENV.step(s, 1)[0], s), ENV.reset(jax.random.key(0))[0], length=20)[1]

    return run()


def at(states: Any, time: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[time], states)


def test_a_film_runs_in_real_time(states: Any, tmp_path: Path) -> None:
    jaxenvs.gif(ENV, states, tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as film:
        assert film.size == (600, 400)
        assert film.n_frames == 11  # of 50 states a second every other one, and the last
        assert film.info["duration"] == 40
        assert film.info["loop"] == 0
        first = np.asarray(film.convert("RGB"), int)
        film.seek(10)
        last = np.asarray(film.convert("RGB"), int)
    assert np.abs(first - ENV.render(at(states, 0))).mean() < 0.1  # a GIF has 256 colors
    assert np.abs(last - ENV.render(at(states, 19))).mean() < 0.1
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]


def test_with_fps_it_shows_each_state_of_a_list(states: Any, tmp_path: Path) -> None:
    jaxenvs.gif(ENV, [at(states, time) for time in (0, 9, 19)], str(tmp_path / "film.gif"), fps=5, size=(42, 64))
    with Image.open(tmp_path / "film.gif") as film:
        assert (film.size, film.n_frames, film.info["duration"]) == ((64, 42), 3, 200)


def test_a_picture_is_shown_for_as_long_as_a_gif_can_say(states: Any, tmp_path: Path) -> None:
    jaxenvs.gif(ENV, [at(states, 0), at(states, 9)], tmp_path / "film.gif", fps=50 / 3, size=8)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.info["duration"] == 60


def test_a_wrapper_films_what_it_holds(tmp_path: Path) -> None:
    env = jaxenvs.Pixels(jaxenvs.make("Pendulum-v1"), 10)
    jaxenvs.gif(env, [jax.jit(env.reset)(jax.random.key(0))[0]], tmp_path / "film.gif", size=50)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.size == (50, 50)


def test_what_is_no_film_is_refused(states: Any, tmp_path: Path) -> None:
    path = tmp_path / "film.gif"
    path.write_text("what was there")
    for wrong in ([], at(states, 0), jax.tree.map(lambda leaf: leaf[:0], states)):
        with pytest.raises(
            ValueError, match="states must be a list of states, or a pytree with one leading axis of time"
        ):
            jaxenvs.gif(ENV, wrong, path)
    for fps in (0, 0.001, 300):  # longer than a GIF can say, and more than viewers show
        with pytest.raises(ValueError, match=f"fps must be a finite number, at least 0.002 and at most 50, got {fps}"):
            jaxenvs.gif(ENV, states, path, fps=fps)
    with pytest.raises(ValueError, match=r"path must end with .gif, got '.*film.mp4'"):
        jaxenvs.gif(ENV, states, tmp_path / "film.mp4")
    with pytest.raises(ValueError, match="size must be"):
        jaxenvs.gif(ENV, states, path, size=0)
    with pytest.raises(NotImplementedError, match="Counter has no picture yet"):
        jaxenvs.gif(Counter(), [at(states, 0)], path)

    @jaxenvs.environment
    class OnTheHost(Counter):
        def render(self, state: Any) -> np.ndarray:
            raise AssertionError("it has a size of its own")

    with pytest.raises(NotImplementedError, match=r"OnTheHost has no draw, only render\(state\)"):
        jaxenvs.gif(OnTheHost(), [at(states, 0)], path, size=50)
    assert path.read_text() == "what was there"
    assert [each.name for each in tmp_path.iterdir()] == ["film.gif"]


def test_without_pillow_it_says_what_to_install(states: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        jaxenvs.gif(ENV, states, tmp_path / "film.gif")
    assert ENV.render(at(states, 0)).shape == (400, 600, 3)  # which needs none


def test_a_folder_that_does_not_exist_is_named(states: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"There is no such folder: '{tmp_path / 'absent'}'"):
        jaxenvs.gif(ENV, states, tmp_path / "absent" / "film.gif")
