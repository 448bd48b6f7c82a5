"""Operations that put a user's code in the way: into an instance, a class, an environment, or a signal's handler."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from tests.differential.environments import OwnWrapper
from tests.differential.operations import writing
from tests.differential.user_classes import overriding

if TYPE_CHECKING:
    from tests.differential.running import Run


def wrap(run: Run, model: Any, owner: str, method: str, call: int = 0, operation: tuple[Any, ...] = ()) -> None:
    """Put a method that counts into an instance: into the "model", its "buffer", "policy", "env" or "logger".

    Args:
      call, operation: after which of its calls it does what.
    """
    instance = {
        "model": lambda: model,
        "buffer": lambda: getattr(model, "replay_buffer", None) or model.rollout_buffer,
        "policy": lambda: model.policy,
        "env": lambda: model.get_env(),
        "logger": lambda: model.logger,
    }[owner]()
    if f"{owner}.{method}" in model.calls:
        return
    theirs = getattr(instance, method)
    calls = model.calls
    calls[f"{owner}.{method}"] = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[f"{owner}.{method}"] += 1
        result = theirs(*args, **kwargs)
        if operation and calls[f"{owner}.{method}"] == call:
            with run.at(f"{owner}.{method} {call}"):
                run.do(model, *operation)
        return result

    setattr(instance, method, counted)


def patch(run: Run, model: Any, method: str, *doing: Any) -> None:
    """Put a method that counts into the library's class, until the program ends.

    Args:
      doing: () or of an operation that writes.
    """
    cls = getattr(run.library, run.setting.algorithm)
    if any((cls, method) == (patched, name) for patched, name, _ in run.patched):
        return
    theirs = getattr(cls, method)
    run.patched.append((cls, method, vars(cls).get(method)))

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        overriding.count(self, f"patched {method}")
        result = theirs(self, *args, **kwargs)
        if doing:
            writing.write(self, *doing)
        return result

    setattr(cls, method, counted)


def undo(run: Run) -> None:
    """Take out of classes what `patch` put there."""
    for cls, method, before in reversed(run.patched):
        if before is None:
            delattr(cls, method)
        else:
            setattr(cls, method, before)
    run.patched.clear()


class Player:
    """What an environment of Gymnasium's calls before it resets or steps, and which holds the model.

    Args:
      events: of each, "reset" or "env step", which of its calls, and the operation.
    """

    def __init__(self, run: Run, model: Any, events: tuple[tuple[Any, ...], ...]) -> None:
        self.run, self.model, self.events = run, model, events
        self.calls = {"reset": 0, "env step": 0}

    def __call__(self, hook: str) -> None:
        number = self.calls[hook]
        self.calls[hook] += 1
        for wanted, call, operation in self.events:
            if (wanted, call) == (hook, number):
                with self.run.at(f"{hook} {number}"):
                    self.run.do(self.model, *operation)

    def __deepcopy__(self, memo: dict[int, Any]) -> Player:
        return self


def play(run: Run, model: Any, events: tuple[tuple[Any, ...], ...]) -> None:
    """Let a wrapper or the first environment hold the model: Gymnasium's alone, as those of jaxenvs are pure."""
    env = model.get_env()
    if isinstance(env, OwnWrapper):
        env.player = Player(run, model, events)
    elif run.setting.env == "gymnasium" and env is not None:
        env.get_attr("unwrapped", indices=[0])[0].player = Player(run, model, events)


def raise_signal(run: Run, model: Any, name: str, operation: tuple[Any, ...]) -> None:
    """Do an operation in the handler of a signal."""

    def handler(*_: Any) -> None:
        run.do(model, *operation)

    number = getattr(signal, name)
    before = signal.signal(number, handler)
    try:
        signal.raise_signal(number)
    finally:
        signal.signal(number, before)


OPERATIONS = {"wrap": wrap, "patch": patch, "play": play, "signal": raise_signal}
