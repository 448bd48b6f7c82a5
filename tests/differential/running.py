"""Programs, and the interpreter that runs one on a library and notes what is seen."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pathlib
import signal
import tempfile
import traceback
import unittest.mock
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.callbacks import (
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.logger import Logger

import bridge
from jaxenvs import learn
from jaxenvs.learn.on_policy.recurrent_ppo import in_rows
from tests.differential import observing
from tests.differential.environments import Hiding
from tests.differential.operations import descending, interposing, saving, writing
from tests.differential.settings import Setting, make, new_env
from tests.differential.user_classes import overriding
from tests.differential.user_classes.watching import Announcing, Broken, Noop, OwnLogger, Rows, Watch
from tests.stock import STOCK

LIBRARIES = {"sb3": STOCK, "bridge": bridge}
# Operations that stand in other modules, by their names.
ELSEWHERE = {**descending.OPERATIONS, **saving.OPERATIONS, **interposing.OPERATIONS}
# Longer than any program takes that does not hang, compilation with it.
MOST_SECONDS = 120


class Program(NamedTuple):
    """Operations, each a name of `Run`'s methods or of ELSEWHERE with arguments, all of them literals.

    Attributes:
      setting: what it begins with.
      operations: in their order.
    """

    setting: Setting
    operations: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        lines = "".join(f"        {operation!r},\n" for operation in self.operations)
        return f"Program(\n    {self.setting!r},\n    (\n{lines}    ),\n)"


class Note(NamedTuple):
    """What was seen.

    Attributes:
      place: after which operation, in which call of a callback.
      what: the name of what was looked at.
      value: of numbers, names and arrays.
    """

    place: str
    what: str
    value: Any


class TakesTooLong(BaseException):
    """A program hangs."""


class Run:
    """A program's run on one library."""

    def __init__(self, library: str, setting: Setting) -> None:
        self.library, self.setting = LIBRARIES[library], setting
        self.other = LIBRARIES["bridge" if library == "sb3" else "sb3"]
        self.theirs = overriding.subclass(getattr(self.other, setting.algorithm), setting.overrides)
        self.notes: list[Note] = []
        self.places: list[str] = []
        self.kept: dict[str, Any] = {}
        self.held: dict[str, Any] = {}
        self.patched: list[tuple[type, str, Any]] = []
        self.files: list[bytes] = []
        self.errors: list[str] = []
        self.models: dict[int, Any] = {}
        self.now = 0

    @contextlib.contextmanager
    def at(self, place: str) -> Iterator[None]:
        self.places.append(place)
        try:
            yield
        finally:
            self.places.pop()

    def note(self, what: str, value: Any) -> None:
        self.notes.append(Note(", ".join(self.places), what, value))

    @property
    def model(self) -> Any:
        if self.now not in self.models:
            model = make(self.library, self.setting, self.now)
            model.calls = {}
            self.models[self.now] = model
            self.give_logger(model)
        return self.models[self.now]

    def give_logger(self, model: Any) -> None:
        if self.setting.logged:
            model.set_logger(OwnLogger() if self.setting.logged == "own" else Logger(None, [Rows()]))

    def do(self, model: Any, name: str, *arguments: Any) -> None:
        """One operation. What it raises is noted, but for what a callback is to raise."""
        try:
            with self.at(name):
                if name in ELSEWHERE:
                    ELSEWHERE[name](self, model, *arguments)
                else:
                    getattr(self, f"do_{name}")(model, *arguments)
        except Broken:
            raise
        except Exception as error:
            self.note("raised", type(error).__name__)
            self.errors.append("".join(traceback.format_exception(error)))

    # --- Operations, of users and in callbacks ------------------------------------------------------------------

    def do_look(self, model: Any, *whats: str) -> None:
        for what in whats:
            self.note(what, observing.LOOKS[what](model, self.setting))

    def do_write(self, model: Any, what: str, *arguments: Any) -> None:
        writing.write(model, what, *arguments)

    def do_train(self, model: Any, gradient_steps: int) -> None:
        """By hand; not from nothing, of which each library says no with other things half done."""
        if not hasattr(model, "_logger"):
            model.set_logger(Logger(None, []))
        if self.setting.is_on_policy:
            if model.rollout_buffer.full:
                model.train()
        elif model.replay_buffer.size():
            model.train(gradient_steps=gradient_steps, batch_size=4)

    def do_returns(self, model: Any, more: float, local: dict[str, Any]) -> None:
        """Shaped rewards, as of SB3's pages: written at the end of a rollout, whose returns are then computed anew."""
        buffer = model.rollout_buffer
        buffer.rewards += more
        buffer.compute_returns_and_advantage(local["values"], local["dones"])
        self.note("returns", observing.plain({"values": local["values"], "advantages": buffer.advantages}))

    def do_raise(self, model: Any) -> None:
        raise Broken

    # --- Operations of users alone ------------------------------------------------------------------------------

    def do_learn(
        self, model: Any, steps: int, resets: bool = True, callback: Any = None, log_interval: int | None = 4
    ) -> None:
        """Train.

        Args:
          steps, resets, log_interval: `learn`'s.
          callback: None, or its kind, a number, and the events of a Watch: it is called "each" step, "every" so many,
            is a "function" of them, or one of a "list", beside "eval", or a stop after so many "episodes". "announced"
            are so many steps; "nested" lists also have checkpoints. "noop" does without it, and so does "eval alone".
        """
        given = watch = announcing = None
        if callback is not None:
            kind, every, events = callback
            watch = Watch(self, events)
            announcing = Announcing(every, watch)
            files = CheckpointCallback(every, f"{os.environ['SB3_LOGDIR']}/{len(self.notes)}")
            given = {
                "each": lambda: watch,
                "every": lambda: EveryNTimesteps(every, watch),
                "list": lambda: [EveryNTimesteps(every, Watch(self, ())), watch],
                "function": lambda: self._function(watch, model),
                "eval": lambda: [self._evaluation(every), watch],
                "episodes": lambda: [StopTrainingOnMaxEpisodes(every), watch],
                "announced": lambda: announcing,
                "nested": lambda: [CallbackList([files]), self._evaluation(every), EveryNTimesteps(every, watch)],
                "noop": Noop,
                "eval alone": lambda: self._evaluation(every),
            }[kind]()
        try:
            model.learn(steps, given, log_interval=log_interval, reset_num_timesteps=resets)
        finally:
            if watch is not None:
                self.note("order", [list(call) for call in watch.order])
                self.note("ends", observing.plain(announcing.ends))
                self._look_at_files(model, pathlib.Path(files.save_path))
            for each in (model.logger, *model.logger.output_formats):
                if not isinstance(each, Rows | OwnLogger):
                    continue
                self.note("rows", [observing.row(row, self.setting) for row in each.rows])
                each.rows = []

    def _look_at_files(self, model: Any, folder: pathlib.Path) -> None:
        names = sorted(file.name for file in folder.glob("*.zip"))
        self.note("files", names)
        if names and writing.has_own_optimizers(model):
            saving.look_at_loaded(self, type(model).load(folder / names[-1], device="cpu"))

    def _evaluation(self, every: int) -> EvalCallback:
        env = new_env(self.setting)
        return EvalCallback(env, n_eval_episodes=1, eval_freq=every, verbose=0, warn=False)

    @staticmethod
    def _function(watch: Watch, model: Any) -> Any:
        watch.model = model

        def function(local: dict[str, Any], _: Any) -> bool:
            watch.locals, watch.num_timesteps = local, model.num_timesteps
            return watch._called("step")

        return function

    def do_turn(self, model: Any) -> None:
        """Go on with the other of two models."""
        self.now = 1 - self.now

    def do_share(self, model: Any, what: str) -> None:
        """Give this model the "env" or the "buffer" of the other."""
        other = self.models.get(1 - self.now)
        if other is None:
            return
        if what == "env":
            model.set_env(other.get_env())
        elif not self.setting.is_on_policy:
            model.replay_buffer = other.replay_buffer

    def do_set_env(self, model: Any, num_envs: int, length: int, force_reset: bool) -> None:
        env = new_env(self.setting, num_envs, length)
        if not force_reset:
            env.reset()
        model.set_env(env, force_reset=force_reset)

    def do_inner(self, model: Any, length: int) -> None:
        """Put other environments into the wrapper that there is."""
        if self.setting.wrapper in ("normalize", "monitor", "own"):
            other = new_env(self.setting, model.n_envs, length)
            other.venv.reset()
            model.get_env().venv = other.venv

    def do_envs(self, model: Any, length: int) -> None:
        """Give the VecEnv that there is a list of other environments, in the middle of their episodes."""
        if model.get_env() is None or not hasattr(model.get_env().unwrapped, "envs"):
            return
        other = new_env(self.setting, 2, length).unwrapped
        other.reset()
        model.get_env().unwrapped.envs = other.envs[: model.n_envs]

    def do_hide(self, model: Any, length: int) -> None:
        """Set a GymVecEnv, on both sides, in a wrapper that hides ends of episodes."""
        envs = new_env(self.setting, 2, length).unwrapped.envs[: model.n_envs]
        clocks = [functools.partial(getattr, env, "unwrapped") for env in envs]
        model.set_env(Hiding(bridge.GymVecEnv(SyncVectorEnv(clocks))))


def run(library: str, program: Program) -> Run:
    """Run a program on "sb3" or "bridge"."""
    ran = Run(library, program.setting)

    def too_long(*_: Any) -> None:
        raise TakesTooLong

    # Of this process's own time: others may have the processor.
    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        with warnings.catch_warnings(), _logs_elsewhere(), _quiet(), _same_cut():
            warnings.simplefilter("ignore")
            for number, operation in enumerate(program.operations):
                with ran.at(str(number)):
                    _do_outside(ran, operation)
            for number in sorted(ran.models):
                with ran.at(f"end of model {number}"):
                    ran.do(ran.models[number], "look", *observing.AT_THE_END)
                    ran.do(ran.models[number], "held")
    except TakesTooLong:
        ran.note("hangs", True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        interposing.undo(ran)
    return ran


@contextlib.contextmanager
def _logs_elsewhere() -> Iterator[None]:
    """Let Stable-Baselines3's loggers leave no folders behind."""
    with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, SB3_LOGDIR=folder):
        yield


@contextlib.contextmanager
def _same_cut() -> Iterator[None]:
    """Let epochs of RecurrentPPO begin with the first step, as what gradients go through depends on it."""

    def orders(self: Any, key: Any, n_steps: int, num_envs: int) -> Any:
        return in_rows(jnp.zeros(self.n_epochs, jnp.int32), n_steps, num_envs)

    draw = np.random.randint  # which others call with more
    with (
        unittest.mock.patch.object(learn.RecurrentPPO, "_orders", orders),
        unittest.mock.patch.object(
            np.random, "randint", lambda *args, **kw: draw(*args, **kw) if args[1:] or kw else 0
        ),
    ):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Say nothing of what runs as SB3's code: programs are full of it."""
    logger = logging.getLogger("jaxenvs.sb3")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _do_outside(ran: Run, operation: tuple[Any, ...]) -> None:
    try:
        ran.do(ran.model, *operation)
    except Broken:
        ran.note("raised", "Broken")
