"""Trainings with a progress bar: the same numbers, and what the bar says of them."""

import functools
import io
import sys
import warnings

import jax
import numpy as np
import pytest

from jaxenvs import learn
from jaxenvs.learn import progress_bar
from jaxenvs.learn.sweep import sweep
from tests.transformations import cases

TRAININGS = {name: cases.trainings()[name].replace(total_timesteps=1200) for name in ("A2C", "DQN")}
KEYS = jax.random.split(jax.random.key(0), 3)
quiet, loud = (functools.partial(learn.train, progress=progress) for progress in (False, True))


def final(told):
    """How each bar ended."""
    return [line.rpartition("\r")[2] for line in told.split("\n") if line]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TRAININGS)
def test_a_bar_shows_steps_and_returns_and_changes_no_bit(kind, capsys):
    training = TRAININGS[kind]
    expected = jax.jit(quiet)(KEYS[0], training)
    assert capsys.readouterr().err == ""
    found = jax.block_until_ready(jax.jit(loud)(KEYS[0], training))
    jax.effects_barrier()
    for one, other in zip(jax.tree.leaves(expected.state.learner), jax.tree.leaves(found.state.learner), strict=True):
        np.testing.assert_array_equal(one, other)
    (bar,) = final(capsys.readouterr().err)
    assert "1.20k/1.20k" in bar
    assert bar.endswith(f" return {expected.metrics['episode_return'][-1]:.2f}]")


def test_without_a_bar_a_training_has_no_callbacks():
    jaxpr = str(jax.make_jaxpr(quiet)(KEYS[0], TRAININGS["A2C"]))
    assert "callback" not in jaxpr
    assert "callback" in str(jax.make_jaxpr(loud)(KEYS[0], TRAININGS["A2C"]))


@pytest.mark.thorough
def test_a_batch_has_one_bar_and_calls_once_for_all(capsys, monkeypatch):
    calls, hear = [], progress_bar._Bar.hear
    monkeypatch.setattr(progress_bar._Bar, "hear", lambda *args: calls.append(args[-1].shape) or hear(*args))
    jax.block_until_ready(jax.jit(jax.vmap(loud, (0, None)))(KEYS, TRAININGS["DQN"]))
    jax.effects_barrier()
    assert set(calls) == {(3,)}
    assert len(calls) <= TRAININGS["DQN"].num_iterations
    (bar,) = final(capsys.readouterr().err)
    assert "3.60k/3.60k" in bar
    assert ", median return " in bar


@pytest.mark.thorough
def test_a_sweep_has_one_bar(capsys):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="sweep runs on one core")
        sweep(lambda key: loud(key, TRAININGS["A2C"]).params, KEYS)
    (bar,) = final(capsys.readouterr().err)
    assert "3.60k/3.60k" in bar
    assert ", median return " in bar


@pytest.mark.parametrize("seconds", [1e-5, 1e-3, 0.1, 2.0])
def test_a_bar_is_called_twice_a_second_however_long_iterations_take(seconds, monkeypatch):
    now, num_iterations, calls = 0.0, 100_000, 0
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now)
    bar = progress_bar._Bar()
    monkeypatch.setattr(bar, "_show", lambda *_: None)
    done = 1
    while done < num_iterations and calls < 1000:
        every = bar.hear(1, done, num_iterations, 1, np.array(0.0))
        done, now, calls = done + every, now + every * seconds, calls + 1
    assert calls <= 2 * now + 10
    assert calls >= min(1000, 1.5 * now)


def test_a_training_goes_on_when_nobody_reads_the_bar(monkeypatch):
    class Closed(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    mean_return = np.float32(5)
    run, next_call = progress_bar._hear(2, 1, np.array([0, 1, 0]), mean_return)
    assert next_call == 2
    progress_bar._hear(2, 1, np.array([run, 2, 0]), mean_return)
