"""Which callbacks are known, and when they need a step: held against the code of the installed SB3 and sb3-contrib."""

import inspect
import sys

import numpy as np
import pytest
from sb3_contrib.common.maskable import callbacks as maskable_callbacks
from stable_baselines3.common import callbacks
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EventCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    ProgressBarCallback,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)

from bridge.engine.callbacks import known
from bridge.engine.callbacks.callback_schedule import ScheduledCallback
from bridge.engine.callbacks.known import looks, needs_rollouts, shows_ends, steps_until_needed
from bridge.self_play.self_play_callback import SelfPlayCallback
from tests.bridge.small_models import make_env

NUM_ENVS, NUM_STEPS = 4, 300
# These read `dones`, or the results of the callback whose child they are, in every step in which they are called.
LOOK = {BaseCallback, StopTrainingOnMaxEpisodes, StopTrainingOnNoModelImprovement, StopTrainingOnRewardThreshold}


class Locals(dict):
    """Locals that keep whether they were read."""

    def __init__(self, done):
        super().__init__(total_timesteps=1)
        self.done = done

    def _read(name):
        def read(self, *args):
            self.done.append(f"locals.{name}")
            return getattr(dict, name)(self, *args)

        return read

    for name in ("__getitem__", "__contains__", "__iter__", "get", "keys", "values", "items", "copy"):
        locals()[name] = _read(name)


class Model:
    """A model that keeps what is called."""

    def __init__(self, env, done):
        self.env, self.done, self.num_timesteps = env, done, 0

    def get_env(self):
        return self.env

    def get_vec_normalize_env(self):
        self.done.append("get_vec_normalize_env")

    def save(self, path):
        self.done.append("save")

    def dump_logs(self):
        self.done.append("dump_logs")

    @property
    def logger(self):
        self.done.append("logger")
        return Logger()


class Logger:
    def record(self, *_, **__):
        pass

    dump = record


class Act(BaseCallback):
    """Reads locals whenever it is called."""

    def _on_step(self):
        assert self.locals["dones"].shape == (NUM_ENVS,)
        return True


class Starts(Act):
    def _on_rollout_start(self):
        pass


class Reads(Act):
    def update_locals(self, locals_):
        super().update_locals(locals_)


class Scheduled(ScheduledCallback):
    """Reads locals in every seventh step, as it announces."""

    def steps_until_needed(self, num_timesteps, num_envs):
        return 6 - self.n_calls % 7

    def _on_step(self):
        return self.n_calls % 7 > 0 or len(self.locals["dones"]) > 0


def no_row(*_):
    return True


def evaluation(cls=EvalCallback, **settings):
    return cls(make_env(), eval_freq=6, warn=False, verbose=0, **settings)


# Of each known class, and of callbacks that hold others: a callback, and the first steps in which it acts.
KNOWN = {
    "CallbackList": (lambda: CallbackList([CheckpointCallback(5, "unused"), Scheduled()]), [5, 7, 10, 14]),
    "an empty list": (lambda: CallbackList([]), []),
    "nested lists": (
        lambda: CallbackList([CallbackList([LogEveryNTimesteps(44)]), CallbackList([CheckpointCallback(8, "unused")])]),
        [8, 11, 16, 22],
    ),
    "CheckpointCallback": (lambda: CheckpointCallback(5, "unused"), [5, 10, 15]),
    "a frequency that is a float": (lambda: CheckpointCallback(1e1, "unused"), [10, 20, 30]),
    "a negative frequency": (lambda: CheckpointCallback(-5, "unused"), [5, 10, 15]),
    "an infinite frequency": (lambda: CheckpointCallback(float("inf"), "unused"), []),
    "ConvertCallback": (lambda: ConvertCallback(None), []),
    "EvalCallback": (evaluation, [6, 12, 18]),
    "no evaluation": (lambda: EvalCallback(make_env(), eval_freq=0), []),
    "children of evaluations": (
        lambda: evaluation(
            callback_on_new_best=StopTrainingOnRewardThreshold(1e9),
            callback_after_eval=CallbackList([StopTrainingOnNoModelImprovement(1000), Act(), Scheduled()]),
        ),
        [6, 12, 18],
    ),
    "MaskableEvalCallback": (lambda: evaluation(maskable_callbacks.MaskableEvalCallback), [6, 12, 18]),
    "EventCallback": (lambda: EventCallback(Act()), []),
    "EveryNTimesteps": (lambda: EveryNTimesteps(22, Act()), [6, 12, 18]),
    "a child that counts episodes": (lambda: EveryNTimesteps(40, StopTrainingOnMaxEpisodes(10_000)), [10, 20, 30]),
    "a child of a child": (lambda: EveryNTimesteps(8, EveryNTimesteps(16, Act())), None),
    "a function as a child": (
        lambda: EveryNTimesteps(22, ConvertCallback(lambda locals_, _: locals_["dones"] is not None)),
        [6, 12],
    ),
    "LogEveryNTimesteps": (lambda: LogEveryNTimesteps(20), [5, 10, 15]),
    "ProgressBarCallback": (ProgressBarCallback, []),
    "SelfPlayCallback": (SelfPlayCallback, []),
    "ScheduledCallback": (Scheduled, [7, 14, 21]),
}


@pytest.fixture
def train(monkeypatch, tmp_path):
    """Return a function that trains with a callback, and returns the steps it announced and those in which it acted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(callbacks, "tqdm", lambda **_: Bar())
    done = []

    def evaluate(*_, **__):
        done.append("evaluate_policy")
        return [1.0], [1]

    for module in (callbacks, maskable_callbacks):
        monkeypatch.setattr(module, "evaluate_policy", evaluate)

    def run(callback):
        model = Model(make_env(), done)
        callback.init_callback(model)
        if isinstance(callback, SelfPlayCallback):  # which then asks for environments with opponents
            callback.locals = Locals(done)
        else:
            callback.on_training_start(Locals(done), {})
        announced, acted, quiet_until = [], [], 0
        for step in range(1, NUM_STEPS + 1):
            steps = steps_until_needed(callback, model.num_timesteps, NUM_ENVS)
            assert type(steps) is int
            assert steps >= 0
            quiet_until = max(quiet_until, step + steps)
            announced += [step] if steps == 0 else []
            model.num_timesteps += NUM_ENVS
            done.clear()
            callback.update_locals({"dones": np.zeros(NUM_ENVS, bool), "infos": [{}] * NUM_ENVS})
            assert callback.on_step()
            if done:
                acted.append(step)
                assert step >= quiet_until, done
        callback.on_training_end()
        return announced, acted

    return run


class Bar:
    def update(self, count):
        assert count == NUM_ENVS

    def refresh(self):
        pass

    close = refresh


def classes(module):
    return {each for _, each in inspect.getmembers(module, inspect.isclass) if issubclass(each, BaseCallback)}


def test_each_callback_of_sb3_and_sb3_contrib_is_known_or_looks():
    """A new release may add some: read when they act, and give each a row, or add it to those that look."""
    found = classes(callbacks)
    assert {cls for cls in found if cls not in known.TABLE} == LOOK
    assert set(known.TABLE) - found == {SelfPlayCallback}
    assert classes(maskable_callbacks) - found == {maskable_callbacks.MaskableEvalCallback}
    assert {cls.__name__ for cls in known.TABLE} <= set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_callback_acts_exactly_in_the_steps_that_it_announces(name, train):
    make, first = KNOWN[name]
    callback = make()
    assert not looks(callback)
    announced, acted = train(callback)
    if first is None:  # its child does nothing in some of the steps
        assert set(acted) < set(announced)
        assert len(announced) < NUM_STEPS
    else:
        assert acted == announced
        assert announced[: len(first)] == first
        assert bool(announced) is bool(first)


def test_a_frequency_of_zero_is_left_to_sb3():
    """It raises in the first step."""
    assert steps_until_needed(CheckpointCallback(0, "unused"), 0, NUM_ENVS) == 0


LOOKERS = {
    "user code": Act,
    "a function": lambda: ConvertCallback(no_row),
    "StopTrainingOnMaxEpisodes": lambda: StopTrainingOnMaxEpisodes(1),
    "StopTrainingOnRewardThreshold": lambda: StopTrainingOnRewardThreshold(1.0),
    "StopTrainingOnNoModelImprovement": lambda: StopTrainingOnNoModelImprovement(1),
    "a part of a part": lambda: CallbackList([ProgressBarCallback(), CallbackList([Act()])]),
    "a subclass": lambda: type("Subclass", (CheckpointCallback,), {})(5, "unused"),
    "a subclass of EvalCallback": lambda: type("Subclass", (EvalCallback,), {})(make_env()),
    "a subclass of CallbackList": lambda: type("Subclass", (CallbackList,), {})([]),
    "a child with code for locals": lambda: EveryNTimesteps(5, Reads()),
    "its child": lambda: EventCallback(CallbackList([Act(), EveryNTimesteps(5, Reads())])),
    "the same twice": lambda: CallbackList([CheckpointCallback(5, "unused")] * 2),
}


@pytest.mark.parametrize("name", LOOKERS)
def test_a_callback_that_is_not_known_looks(name):
    callback = LOOKERS[name]()
    assert looks(callback)
    assert looks(CallbackList([Scheduled(), callback]))


def test_a_callback_that_looks_needs_the_next_step():
    assert steps_until_needed(CallbackList([Scheduled(), Act()]), 0, NUM_ENVS) == 0


@pytest.mark.parametrize("name", ["on_step", "_on_step", "update_locals", "_on_rollout_start"])
def test_a_known_callback_looks_if_one_of_its_methods_is_replaced(name, monkeypatch):
    callback = CheckpointCallback(5, "unused")
    setattr(callback, name, getattr(callback, name))
    assert looks(callback)
    assert looks(CallbackList([callback]))
    del callback.__dict__[name]
    assert not looks(callback)
    monkeypatch.setattr(CheckpointCallback, name, lambda self, *_: None)
    assert looks(callback)
    assert looks(CheckpointCallback(5, "unused"))
    assert not looks(EveryNTimesteps(5, Act()))


@pytest.mark.parametrize("name", ["update_locals", "update_child_locals"])
def test_a_child_looks_only_if_it_has_custom_code_for_locals(name):
    child = Act()
    child.on_step = child._on_step
    callback = EveryNTimesteps(5, CallbackList([child]))
    assert not looks(callback)
    setattr(child, name, getattr(child, name))
    assert looks(callback)


def test_a_scheduled_callback_is_what_its_author_announces_unless_sb3s_class_is_changed(monkeypatch):
    callback = Scheduled()
    callback._on_step = lambda: True
    monkeypatch.setattr(Scheduled, "update_locals", lambda self, locals_: None)
    assert not looks(callback)
    assert steps_until_needed(callback, 0, NUM_ENVS) == 6
    assert steps_until_needed(CallbackList([callback, CheckpointCallback(5, "unused")]), 0, NUM_ENVS) == 4
    monkeypatch.setattr(BaseCallback, "on_step", lambda self: True)
    assert looks(callback)


def test_a_scheduled_callback_is_shown_ends_where_it_is_called_in_every_step():
    assert shows_ends(Scheduled())
    assert shows_ends(CallbackList([ProgressBarCallback(), CallbackList([Scheduled()])]))
    assert not shows_ends(CallbackList([ProgressBarCallback(), EveryNTimesteps(5, Scheduled())]))
    assert not shows_ends(evaluation())


class ScheduledStarts(Scheduled):
    _on_rollout_end = Starts._on_rollout_start


def test_rollouts_are_needed_by_callbacks_that_have_methods_for_them():
    """But not where they are children of an EventCallback, which does not call these methods."""
    for callback in (Starts(), ScheduledStarts(), SelfPlayCallback()):
        assert needs_rollouts(callback)
        assert needs_rollouts(CallbackList([ProgressBarCallback(), CallbackList([callback])]))
        assert not needs_rollouts(EveryNTimesteps(5, callback))
    for callback in (Act(), Scheduled(), evaluation(), ConvertCallback(no_row), CallbackList([ProgressBarCallback()])):
        assert not needs_rollouts(callback)
    callback = Scheduled()
    callback._on_rollout_end = lambda: None
    assert needs_rollouts(callback)
    assert steps_until_needed(CallbackList([]), 0, NUM_ENVS) == sys.maxsize


@pytest.mark.parametrize("name", ["_on_rollout_start", "_on_rollout_end"])
def test_rollouts_are_needed_by_a_method_that_is_put_into_sb3s_class(name, monkeypatch):
    callbacks = ProgressBarCallback(), CheckpointCallback(10, "unused")
    assert not any(map(needs_rollouts, callbacks))
    monkeypatch.setattr(BaseCallback, name, lambda self: None)
    assert all(map(needs_rollouts, callbacks))
