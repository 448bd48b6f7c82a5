"""Sync between compiled functions and user code: which copy of the weights is current, and who may run.

    compiled functions           Session.user_code()            user code
    weights and moments   ---->  written to PyTorch      ---->  callbacks, overridden methods, signal handlers,
    as vectors            <----  compared and read anew  <----  `model.plan`, `save`, everything outside of `learn`

An update may keep its results in vectors, which saves a copy in each direction. PyTorch then has old values, so no user
code may run: it would read old values, and what it writes would be lost. All user code is therefore called inside
`Session.user_code`, and nothing else syncs. Some user code cannot be wrapped, because it may be called from anywhere:
overridden methods, loggers, schedules, noises, buffers, and environments that may reach the model. It keeps the session
in the state TORCH for the whole training: see `Plan.user_code` and `bridge.engine.user_code.model_references`.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from bridge.engine.acting import forget_graph
from bridge.engine.callbacks.callback_schedule import needs_every_step, needs_rollouts, needs_steps
from bridge.engine.plan import Plan, make_plan
from bridge.engine.user_code.model_references import why_reached
from bridge.engine.user_code.signals import Signals
from bridge.sb3 import Algorithm

log = logging.getLogger("bridge")


class State(enum.Enum):
    """Which copy of the weights is current."""

    TORCH = "PyTorch's. User code may have changed anything since the plan was made."
    DEVICE = "The vectors. No user code has run since the plan was made or compared."


class UserCode:
    """Context manager of `Session.user_code`: a class, because it is entered at each step that a callback sees."""

    __slots__ = ("_may_change_anything", "_session", "_was_training")

    def __init__(self, session: Session, may_change_anything: bool) -> None:
        self._session, self._may_change_anything = session, may_change_anything

    def __enter__(self) -> None:
        session = self._session
        session._sync()
        self._was_training, session._is_training = session._is_training, False

    def __exit__(self, *_: object) -> None:
        session = self._session
        session._sync()
        session._is_training = self._was_training
        if self._may_change_anything:
            session._knows_environments = False
            session.signals.forget()


class Session:
    """State of a model's training, and the only place from which user code is called.

    Attributes:
      plan: the last plan that was made; None before the first.
      signals: signal handlers, which are user code too.
    """

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.signals = Signals(self.user_code)
        self._state = State.TORCH
        self._is_training = False
        # Whether a callback needs every step. Results kept in vectors would then be written to PyTorch at once.
        self._needs_every_step = False
        # Whether no user code has run since the environments were searched for references to the model.
        self._knows_environments = False
        self._environments: str | None = None

    @property
    def on_device(self) -> bool:
        """True if no user code can have run since the plan was made, and none can until `user_code`.

        An update may then keep its results in vectors, and nothing has to be compared.
        """
        return self._state is State.DEVICE

    def user_code(self) -> UserCode:
        """Return the context for user code, with all weights and moments in PyTorch. After it, all are read anew."""
        return UserCode(self, may_change_anything=True)

    def torch_code(self) -> UserCode:
        """Return the context for SB3's own code, which accesses PyTorch's tensors and nothing else of the model."""
        return UserCode(self, may_change_anything=False)

    @contextmanager
    def training(self, callback: BaseCallback) -> Iterator[None]:
        """Run our own training loop, in which user code runs only inside `user_code`."""
        was, self._knows_environments = (self._is_training, self._needs_every_step), False
        self._is_training, self._needs_every_step = True, needs_every_step(callback)
        try:
            with self.signals.taken_over():
                yield
        finally:
            self._is_training, self._needs_every_step = was
            self._sync()

    def current_plan(self, algorithm: Algorithm, env: VecEnv | None) -> Plan:
        """Return the plan. It is made anew if something that it depends on has changed."""
        if self.on_device and self.plan is not None:
            return self.plan
        before = self.plan
        if self.plan is None or not self.plan.is_current(algorithm, env):
            self._sync()
            self.plan = make_plan(algorithm, env)
        plan = self.plan
        if plan.actor is not None:
            forget_graph(algorithm.policy)
        # The environments matter only if results could be kept in vectors: something is compiled, and no callback sees
        # every step.
        is_compiled = plan.actor is not None or plan.learner is not None
        if is_compiled and not self._needs_every_step:
            if not self._knows_environments:
                self._environments, self._knows_environments = why_reached(env, algorithm), True
            plan.environments = self._environments
        if plan is not before and (before is None or str(plan) != str(before)):
            log.log(logging.WARNING if plan.reasons else logging.INFO, "%s", plan)
        if is_compiled and self._is_training and not (self._needs_every_step or plan.user_code or plan.environments):
            self._state = State.DEVICE
        return plan

    def _sync(self) -> None:
        """Write to PyTorch what an update has kept in vectors. From here on, assume that anything may have changed."""
        self._state = State.TORCH
        learner = None if self.plan is None else self.plan.learner
        if learner is not None and learner.keeps_vectors:
            with self.signals.waiting():  # a handler would find half of the weights old, the other half new
                learner.sync()


class CallbackDoor:
    """Wrapper that calls a callback as SB3 does, inside `Session.user_code` unless the callback is known to do nothing.

    Attributes:
      callback: the user's.
    """

    def __init__(self, session: Session, callback: BaseCallback) -> None:
        self.callback = callback
        self._session = session

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._session.user_code():
            return function(*arguments)

    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        self._call(self.callback.on_training_start, locals_, globals_)

    def on_training_end(self) -> None:
        self._call(self.callback.on_training_end)

    def on_rollout_start(self) -> None:
        if needs_rollouts(self.callback):
            self._call(self.callback.on_rollout_start)

    def on_rollout_end(self, shown: dict[str, Any] | None = None) -> None:
        """Call the callback's `on_rollout_end`.

        Args:
          shown: SB3's locals at that moment, as far as they have changed since the last step. None: the callback reads
            none.
        """
        if shown is not None:
            self._call(self.callback.update_locals, shown)
        if needs_rollouts(self.callback):
            self._call(self.callback.on_rollout_end)

    def on_step(self, shown: dict[str, Any] | None = None, acts: bool | None = None) -> bool:
        """Call the callback's `on_step`.

        Args:
          shown: SB3's locals of this step; None: the callback keeps those that it has.
          acts: whether the callback may do anything in this step. If not given, it may if it is shown something.

        Returns:
          False to stop training.
        """
        if not (shown is not None if acts is None else acts):
            if shown is not None:
                self.callback.update_locals(shown)
            return self.callback.on_step()
        with self._session.user_code():
            if shown is not None:
                self.callback.update_locals(shown)
            return self.callback.on_step()

    @property
    def needs_steps(self) -> bool:
        """True if the callback may read locals in some step."""
        return needs_steps(self.callback)

    @property
    def needs_rollouts(self) -> bool:
        """True if the callback does something when rollouts begin or end."""
        return needs_rollouts(self.callback)

    @property
    def needs_every_step(self) -> bool:
        """True if the callback may read locals in every step."""
        return needs_every_step(self.callback)
