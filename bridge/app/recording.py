"""Films of a trained agent, as GIF or MP4."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from bridge.app.config import TrainingConfig
from bridge.app.evaluation import first_seed, fresh_env
from bridge.app.files import make_folder, replacing, writing
from bridge.app.runs import folders_of_models, load_model, read_run
from bridge.contrib import is_maskable
from jaxenvs import VectorEnv, cli
from jaxenvs.cli import UserError
from jaxenvs.drawing.film import real_time, write_gif
from jaxenvs.gym import GymnasiumEnv
from jaxenvs.wrappers.action_masker import with_action_masks

MOST_STEPS = 2000  # of all episodes together
NATIVE_FPS = 50  # of EnvPool, which does not report how long a step is
GIF_WIDTH = 400  # wider frames are reduced: a GIF is for a page, and slow to write


def record_run(folder: Path, n_episodes: int, seed: int | None, out: Path) -> str:
    """Film deterministic episodes of a run's agent, the same with which `jaxenvs evaluate` begins.

    If the run has several agents, it films the first one.

    Args:
      n_episodes: the number of episodes.
      seed: of the first episode; None for the first seed of an evaluation.
      out: a file that ends with .gif or .mp4.

    Returns:
      The episodes' returns, as a line of text.

    Raises:
      UserError: the run cannot be read, the environment has no picture, or the file cannot be written.
    """
    if out.suffix not in (".gif", ".mp4"):
        raise UserError(f"--out must end with .gif or .mp4, got {out}.")
    if out.suffix == ".mp4" and importlib.util.find_spec("moviepy") is None:
        raise UserError(f"{out} needs moviepy: pip install moviepy. Or choose an --out that ends with .gif.")
    folder, config = folders_of_models(folder, read_run(folder))[0]
    is_gif = out.suffix == ".gif"
    episodes: _Episodes | _NativeEpisodes
    if config.backend == "native":
        _require_pictures(config)
        model, trained_on = load_model(folder, config)
        episodes = _NativeEpisodes(model, fresh_env(config, trained_on, 1, render_mode="rgb_array"))
        every, fps = (2, NATIVE_FPS / 2) if is_gif else (1, NATIVE_FPS)
    else:
        env = cli.make_environment(config.env_id, config.env_kwargs)
        if not env.can_render:
            raise UserError(
                f"{config.env_id} cannot be drawn: define {type(env.unwrapped).__name__}.draw(state, height, width) "
                "or render(state)."
            )
        model, trained_on = load_model(folder, config)
        env = with_action_masks(VectorEnv(env, 1)).env  # for environments that report them without a method
        episodes = _Episodes(model, trained_on, GymnasiumEnv(env, "rgb_array"))
        every, fps = real_time(env) if is_gif else (1, env.render_fps)
    frames = episodes.frames(n_episodes, first_seed(config) if seed is None else seed, every)
    make_folder(out.parent)
    if is_gif:
        with writing(out):
            write_gif(map(_shrunk, frames), fps, out)
    else:
        with replacing(out) as path:
            _write_mp4(frames, fps, path)
    returns = ", ".join(f"{gained:.2f}" for gained in episodes.returns)
    return f"Wrote {out}: return {returns}" + (f", cut after {MOST_STEPS} steps" if episodes.cut else "")


class _Episodes:
    """Episodes of a model, frame by frame.

    Attributes:
      returns: the return of each episode that has begun.
      cut: True if MOST_STEPS ended the last one.
    """

    def __init__(self, model: BaseAlgorithm, trained_on: VecEnv, env: GymnasiumEnv) -> None:
        self._model: Any = model
        self._trained_on, self._env = trained_on, env
        self._remembered: Any = None  # the recurrent state of the policy
        self.returns: list[float] = []
        self.cut = False

    def frames(self, n_episodes: int, seed: int, every: int) -> Iterator[np.ndarray]:
        """Yield the picture of every `every`-th state, and of the first and last state of each episode."""
        steps = 0
        for episode in range(n_episodes):
            observation, _ = self._env.reset(seed=(seed + episode) % 2**32)
            self._remembered = None
            self.returns.append(0.0)
            done, length = False, 0
            yield self._picture()
            while not done:
                if steps == MOST_STEPS:
                    self.cut = True
                    return
                observation, reward, terminated, truncated, _ = self._env.step(self._action(observation))
                done, length, steps = terminated or truncated, length + 1, steps + 1
                self.returns[-1] += reward
                if done or length % every == 0:
                    yield self._picture()

    def _action(self, observation: Any) -> Any:
        if isinstance(self._trained_on, VecNormalize):
            observation = self._trained_on.normalize_obs(observation)
        further = {"action_masks": self._env.action_masks()} if is_maskable(self._model.policy) else {}
        action, self._remembered = self._model.predict(observation, self._remembered, deterministic=True, **further)
        return action

    def _picture(self) -> np.ndarray:
        picture = self._env.render()
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape[2:] != (3,):
            got = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
            raise UserError(f"render must return a uint8 array (height, width, 3), got {got}.")
        return picture


class _NativeEpisodes:
    """Episodes of a model on EnvPool, frame by frame; in Atari, whole games. The attributes are those of _Episodes."""

    def __init__(self, model: BaseAlgorithm, env: VecEnv) -> None:
        self._model, self._env = model, env
        self.returns: list[float] = []
        self.cut = False

    def frames(self, n_episodes: int, seed: int, every: int) -> Iterator[np.ndarray]:
        """Yield every `every`-th picture. EnvPool has none of an episode's last state, as the next has begun."""
        steps = 0
        for episode in range(n_episodes):
            self._env.seed((seed + episode) % 2**32)
            observation: Any = self._env.reset()
            self.returns.append(0.0)
            remembered, told, length = None, None, 0
            while told is None:
                if length % every == 0:
                    yield self._picture()
                if steps == MOST_STEPS:
                    self.cut = True
                    return
                action, remembered = self._model.predict(observation, remembered, deterministic=True)
                observation, reward, _, infos = self._env.step(action)
                length, steps = length + 1, steps + 1
                self.returns[-1] += float(reward[0])
                told = infos[0].get("episode")
            self.returns[-1] = float(told["r"])

    def _picture(self) -> np.ndarray:
        picture = self._env.get_images()[0]
        assert picture is not None
        return picture


def _require_pictures(config: TrainingConfig) -> None:
    """Try to draw in a separate process first, because MuJoCo ends the process if there is no OpenGL.

    Raises:
      UserError: EnvPool cannot draw the environment here.
    """
    code = f"""
from bridge.app.environments import find
env = find("native", {config.env_id!r}, {config.env_kwargs!r}).make(1, 0, render_mode="rgb_array")
env.reset()
assert env.get_images()[0] is not None
"""
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if tried.returncode:
        said = (tried.stderr or tried.stdout).strip().rpartition("\n")[2]
        raise UserError(f"EnvPool cannot draw {config.env_id} here (MuJoCo needs OpenGL, libEGL, to draw): {said}")


def _shrunk(frame: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(frame).reduce(-(-frame.shape[1] // GIF_WIDTH)))


def _write_mp4(frames: Iterator[np.ndarray], fps: float, path: Path) -> None:
    from moviepy.video.io.ImageSequenceClip import ImageSequenceClip

    ImageSequenceClip(list(frames), fps=fps).write_videofile(str(path), logger=None)
