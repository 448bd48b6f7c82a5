"""record: videos of a trained agent, as GIF or MP4."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import RenderCollection
from PIL import Image, ImageDraw
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

import jaxenvs
from bridge.contrib import is_maskable
from bridge.environment_ids import is_jax_id, require_in_gymnasium
from bridge.evaluation import Evaluation
from bridge.evaluation.on_host import warn_without_statistics, with_statistics
from bridge.sb3 import AnyEnv
from bridge.self_play.policy_pools import with_opponent
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import Environment, VectorEnv, arguments
from jaxenvs.drawing.film import LEAST_FPS, MOST_FPS, REAL_TIME_FPS, write_gif
from jaxenvs.files import replacing, require_folder_of
from jaxenvs.gym import GymnasiumEnv
from jaxenvs.wrappers.action_masker import with_action_masks

SUFFIXES = (".gif", ".mp4")
GIF_WIDTH = 400  # wider frames are reduced, because a GIF is slow to write, and large
TITLE_HEIGHT = 24
PASS_ENV = "pass env, an environment made with render_mode='rgb_array'"


def record(
    model: BaseAlgorithm,
    path: str | os.PathLike[str],
    env: str | Environment[Any] | VectorEnv | VecEnv | AnyEnv | None = None,
    n_episodes: int = 1,
    *,
    deterministic: bool = True,
    seed: int = 0,
    title: str = "",
    fps: float | None = None,
    max_steps: int = 2000,
) -> Evaluation:
    """Record episodes of a model as a GIF or MP4 video, without changing the model or the environments it trains in.

    The video has the size of the environment's own picture, and runs in real time. GIFs wider than 400 pixels are
    reduced to 400, and show every n-th step above 30 steps per second.

    Args:
      model: any SB3 model.
      path: a file that ends with .gif or .mp4. MP4 needs moviepy: `pip install "jaxenvs[video]"`.
      env: an id of jaxenvs or Gymnasium; a jaxenvs Environment or VectorEnv; a Gymnasium environment with
        `render_mode="rgb_array"`; or a VecEnv, whose first environment is recorded. If not given, a new environment
        like the model's (`model.get_env()`). Single environments get the VecEnv wrappers of the model.
      n_episodes: the number of episodes, one after the other.
      deterministic: whether to take the most likely actions.
      seed: episode i starts from `seed + i`, as in `evaluate`.
      title: a line of text above the picture.
      fps: steps per second. If not given, the environment's `render_fps`, or 30.
      max_steps: the video ends after this number of steps.

    Returns:
      The returns and lengths of the episodes. An episode that `max_steps` cut is truncated.

    Raises:
      ImportError: an MP4 needs moviepy, which is not installed.
      UnknownEnvironment: there is no such id.
      TypeError, ValueError: an argument has the wrong type or value, or the environment draws no pictures.
      OSError: the file cannot be written.
    """
    arguments.instance("model", model, BaseAlgorithm, "an SB3 model")
    path = Path(arguments.instance("path", path, (str, os.PathLike), "a path"))
    arguments.instance("title", title, str, "a str")
    arguments.boolean("deterministic", deterministic)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"path must end with .gif or .mp4, got {path}.")
    if path.suffix == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ImportError(f'{path} needs moviepy: pip install "jaxenvs[video]". Or let path end with .gif.')
    require_folder_of(path)
    n_episodes = arguments.positive_int("n_episodes", n_episodes)
    max_steps = arguments.positive_int("max_steps", max_steps)
    seed = arguments.integer("seed", seed, -(2**63), None, "an int")
    venv, collects = _stage(model, env)
    warn_without_statistics(model, venv, stacklevel=2)
    if fps is None:
        fps = float((getattr(venv.unwrapped, "metadata", None) or {}).get("render_fps") or 30)
    fps = arguments.number("fps", fps, least=LEAST_FPS)
    takes = _Takes(model, venv, collects, deterministic, seed, max_steps)
    if path.suffix == ".gif":
        every = math.ceil(fps / REAL_TIME_FPS)
        frames = (_titled(_reduced(frame), title) for frame in takes.frames(n_episodes, every))
        write_gif(frames, min(fps / every, MOST_FPS), path)
    else:
        with replacing(path) as unfinished:
            _write_mp4((_titled(frame, title) for frame in takes.frames(n_episodes, 1)), fps, unfinished)
    return takes.evaluation()


class _Takes:
    """Episodes of a model, frame by frame, and their results."""

    def __init__(
        self, model: Any, venv: VecEnv, collects: bool, deterministic: bool, seed: int, max_steps: int
    ) -> None:
        self._model, self._venv, self._collects, self._deterministic = model, venv, collects, deterministic
        self._seed, self._steps_left = seed, max_steps
        self._rows: list[tuple[float, int, bool, bool]] = []

    def frames(self, n_episodes: int, every: int) -> Iterator[np.ndarray]:
        """Yield the picture of every `every`-th state, and of the first and last state of each episode."""
        for episode in range(n_episodes):
            if self._steps_left == 0:
                return
            self._venv.seed((self._seed + episode) % 2**32)
            observation = self._venv.reset()
            yield self._pictures()[0]
            memory, starts, result, gained, length = None, np.ones(self._venv.num_envs, bool), None, 0.0, 0
            while result is None and self._steps_left:
                action, memory = self._model.predict(
                    observation, memory, starts, deterministic=self._deterministic, **self._masks()
                )
                observation, reward, dones, infos = self._venv.step(action)
                starts, gained, length = dones, gained + float(reward[0]), length + 1
                self._steps_left -= 1
                # Where a Monitor counts whole games, an Atari game continues after a life is lost.
                result = infos[0].get("episode")
                pictures = self._pictures()
                if (result is not None or length % every == 0 or not self._steps_left) and pictures:
                    yield pictures[0]
            truncated = result is None or bool(infos[0].get("TimeLimit.truncated", False))
            gained = gained if result is None else float(result["r"])
            self._rows.append((gained, length, not truncated, truncated))

    def evaluation(self) -> Evaluation:
        """Return the results of the episodes that were recorded."""
        returns, lengths, terminated, truncated = zip(*self._rows)
        return Evaluation(np.array(returns), np.array(lengths), np.array(terminated), np.array(truncated))

    def _masks(self) -> dict[str, np.ndarray]:
        if not is_maskable(self._model.policy):
            return {}
        from sb3_contrib.common.maskable.utils import get_action_masks

        return {"action_masks": get_action_masks(self._venv)}

    def _pictures(self) -> list[np.ndarray]:
        """Return the pictures since the last call, including the first picture of an episode that has begun."""
        found = self._venv.env_method("render", indices=[0])[0] if self._collects else [self._venv.get_images()[0]]
        for picture in found:
            if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape[2:] != (3,):
                got = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
                raise ValueError(f"render must return a uint8 array (height, width, 3), got {got}.")
        return list(found)


def _stage(model: BaseAlgorithm, env: object) -> tuple[VecEnv, bool]:
    """Return the environment to record as a VecEnv, and whether it is a new one, in a RenderCollection.

    Other VecEnvs reset themselves before the picture of an episode's last state can be taken.
    """
    trained_in = model.get_env()
    around: VecEnv | None = env if isinstance(env, VecEnv) else trained_in
    if env is None and around is None:
        raise ValueError(f"The model has no environments: {PASS_ENV}.")
    if env is None or isinstance(env, VecEnv):
        assert around is not None
        inner = around.unwrapped
        if isinstance(inner, JaxVecEnv):
            env = inner.venv
        elif env is not None and inner.render_mode == "rgb_array":
            return env, False
        else:
            env = _made_again(inner)
    if isinstance(env, str) and is_jax_id(env):
        env = jaxenvs.make(env)
    elif isinstance(env, str):
        require_in_gymnasium(env)
        env = gymnasium.make(env, render_mode="rgb_array")
    if isinstance(env, Environment):
        env = VectorEnv(env, 1)
    if isinstance(env, VectorEnv):
        env = _as_gymnasium(with_opponent(env.env_at(0), None), is_maskable(model.policy))
    if not isinstance(env, gymnasium.Env):
        raise TypeError(
            "env must be an id, a jaxenvs Environment or VectorEnv, a Gymnasium environment or a VecEnv, got a "
            f"{type(env).__name__}."
        )
    if env.render_mode != "rgb_array":
        raise ValueError(f"env has render_mode={env.render_mode!r}, which gives no pictures: {PASS_ENV}.")
    filmed = Monitor(RenderCollection(env, reset_clean=False))
    return _in_wrappers(DummyVecEnv([lambda: filmed]), around), True


def _as_gymnasium(env: Environment[Any], masks: bool) -> GymnasiumEnv:
    if not env.can_render:
        name = type(env.unwrapped).__name__
        raise ValueError(f"{name} cannot be drawn: define {name}.draw(state, height, width) or render(state).")
    if masks:  # some environments report them without a method
        env = with_action_masks(VectorEnv(env, 1)).env
    return GymnasiumEnv(env, "rgb_array")


def _made_again(venv: VecEnv) -> AnyEnv:
    """Return a new Gymnasium environment, with pictures, like the first one of a VecEnv.

    Raises:
      ValueError: Gymnasium cannot make it again, because it was not made by id.
    """
    try:
        spec = copy.copy(venv.get_attr("spec", indices=[0])[0])
        if spec is None:
            raise ValueError("it was not made by gymnasium.make")
        # SB3's Monitor changes nothing, and Gymnasium cannot make it again.
        spec.additional_wrappers = tuple(each for each in spec.additional_wrappers if each.name != "Monitor")
        env: AnyEnv = gymnasium.make(spec, render_mode="rgb_array")
    except Exception as error:  # of any kind, because it may come from the user's environment
        raise ValueError(
            f"The model's environment cannot be made again to be recorded ({error}): {PASS_ENV}."
        ) from error
    return env


def _in_wrappers(venv: VecEnv, like: VecEnv | None) -> VecEnv:
    """Return an environment in copies of the VecEnv wrappers around others. Statistics are not updated."""
    if not isinstance(like, VecEnvWrapper):
        return venv
    inner = _in_wrappers(venv, like.venv)
    if isinstance(like, VecMonitor):  # each episode is in a Monitor already
        return inner
    if isinstance(like, VecNormalize):
        return with_statistics(inner, like)
    new = object.__new__(type(like))
    vars(new).update(vars(like) | {"venv": inner, "num_envs": 1})
    if isinstance(like, VecFrameStack):
        vars(new)["stacked_obs"] = stack = copy.deepcopy(like.stacked_obs)
        _empty(stack)
    return new


def _empty(stack: StackedObservations[Any]) -> None:
    """Make a stack of frames one for a single environment."""
    for each in getattr(stack, "sub_stacked_observations", {"": stack}).values():
        each.stacked_obs = np.zeros((1, *each.stacked_shape), each.stacked_obs.dtype)


def _reduced(frame: np.ndarray) -> np.ndarray:
    height, width = frame.shape[:2]
    if width <= GIF_WIDTH:
        return frame
    size = GIF_WIDTH, round(height * GIF_WIDTH / width)
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BOX))


def _titled(frame: np.ndarray, title: str) -> np.ndarray:
    if not title:
        return frame
    image = Image.new("RGB", (frame.shape[1], frame.shape[0] + TITLE_HEIGHT), "white")
    image.paste(Image.fromarray(frame), (0, TITLE_HEIGHT))
    ImageDraw.Draw(image).text((6, 4), title, "black", font_size=14)
    return np.asarray(image)


def _write_mp4(frames: Iterator[np.ndarray], fps: float, path: Path) -> None:
    import imageio_ffmpeg

    first = next(frames)
    height, width = (2 * (size // 2) for size in first.shape[:2])  # H.264 has no odd sizes
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # ffmpeg's process does not use JAX
        writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=fps, macro_block_size=2)
        writer.send(None)
    for frame in itertools.chain([first], frames):
        writer.send(np.ascontiguousarray(frame[:height, :width]))
    writer.close()
