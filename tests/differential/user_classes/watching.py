"""Callbacks and loggers as users write them, which note what they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger

from bridge import ScheduledCallback
from tests.differential import observing

if TYPE_CHECKING:
    from tests.differential.running import Run


class Broken(Exception):
    """What a callback of a program raises."""


class Rows(KVWriter):
    """Where rows of a log go."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        self.rows.append({"step": step, **key_values})

    def close(self) -> None:
        pass


class OwnLogger(Logger):
    """A logger of a user's own, who has no use for formats."""

    def __init__(self) -> None:
        super().__init__(None, [])
        self.rows: list[dict[str, Any]] = []

    def dump(self, step: int = 0) -> None:
        self.rows.append({"step": step, **self.name_to_value})
        super().dump(step)


class Watch(BaseCallback):
    """A callback that notes in which order it is called, and runs operations in some of its calls.

    Args:
      events: of each, the hook, which of its calls, and the operation.
    """

    def __init__(self, run: Run, events: tuple[tuple[Any, ...], ...]) -> None:
        super().__init__()
        self.run, self.events = run, events
        self.order: list[tuple[str, int]] = []

    def _called(self, hook: str) -> bool:
        number = sum(name == hook for name, _ in self.order)
        self.order.append((hook, int(self.num_timesteps)))
        goes_on = True
        for wanted, call, operation in self.events:
            if (wanted, call) == (hook, number):
                with self.run.at(f"{hook} {number}"):
                    if operation[0] == "stop":
                        goes_on = False
                    elif operation[0] == "reward":
                        self.locals["rewards"] += operation[1]
                    elif operation[0] == "returns":
                        self.run.do(self.model, *operation, self.locals)
                    elif operation[0] == "locals":
                        self.run.note("locals", observing.local(self.locals, self.run.setting))
                    else:
                        self.run.do(self.model, *operation)
        return goes_on

    def _on_training_start(self) -> None:
        self._called("training start")

    def _on_rollout_start(self) -> None:
        self._called("rollout start")

    def _on_step(self) -> bool:
        return self._called("step")

    def _on_rollout_end(self) -> None:
        self._called("rollout end")

    def _on_training_end(self) -> None:
        self._called("training end")

    def __deepcopy__(self, memo: dict[int, Any]) -> Watch:
        return self


class Noop(BaseCallback):
    """Does nothing, but nobody knows that."""

    def _on_step(self) -> bool:
        return True


class Announcing(ScheduledCallback):
    """Announces every so many steps, in which it calls another callback, and keeps the ends of episodes in all steps.

    Args:
      every: how many.
      watch: the other one.
    """

    def __init__(self, every: int, watch: BaseCallback) -> None:
        super().__init__()
        self.every, self.watch = every, watch
        self.ends: list[list[Any]] = []

    def steps_until_needed(self, num_timesteps: int, num_envs: int) -> int:
        return self.every - 1 - self.n_calls % self.every

    def _init_callback(self) -> None:
        self.watch.init_callback(self.model)

    def _on_step(self) -> bool:
        for env in self.locals["dones"].nonzero()[0].tolist():
            episode = self.locals["infos"][env]["episode"]
            self.ends.append([int(self.num_timesteps), env, episode["r"], episode["l"]])
        if self.n_calls % self.every:
            return True
        self.watch.update_locals(self.locals)
        return self.watch.on_step()
