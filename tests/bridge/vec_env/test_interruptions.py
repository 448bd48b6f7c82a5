"""A JaxVecEnv after Ctrl-C, a program that failed, a fork, and in copies made at any moment."""

import copy
import os
import pickle
import sys
import warnings
from types import SimpleNamespace

import chex
import cloudpickle
import jax
import numpy as np
import pytest
import torch

from bridge import JaxVecEnv, make_vec_env
from bridge.vec_env import jax_vec_env
from tests.bridge.vec_env.test_jax_vec_env import counter, started

ACTIONS = np.zeros(3, int)


class Failing:
    """A program that takes its donated state and then fails."""

    def __init__(self, error):
        self.error = error

    def __call__(self, parameters, state, action):
        jax.tree.map(lambda leaf: leaf.delete(), state)
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory")], ids=repr)
@pytest.mark.parametrize(
    ("program", "step"),
    [
        ("step", lambda venv: venv.step(ACTIONS)),
        ("step_on_device", lambda venv: venv.step_torch(torch.zeros(3, dtype=torch.int64))),
    ],
)
def test_after_a_step_that_failed_a_reset_opens_the_environments_again(program, step, error):
    venv = started(counter())
    programs = venv.compiled
    venv.compiled = SimpleNamespace(**vars(programs) | {program: Failing(error)})
    with pytest.raises(type(error)):
        step(venv)
    venv.compiled = programs
    for call in (step, JaxVecEnv.get_state):
        with pytest.raises(RuntimeError, match=r"Call reset\(\) first"):
            call(venv)
    venv = pickle.loads(pickle.dumps(venv))
    assert venv.reset().shape == (3, 2)
    assert venv.step(ACTIONS)[0].shape == (3, 2)


def test_a_program_that_fails_while_the_host_waits_leaves_no_state():
    venv = started(counter())
    venv.step_async(ACTIONS)
    programs = venv.compiled

    def fail(packed):
        raise RuntimeError("out of memory")

    venv.compiled = SimpleNamespace(**vars(programs) | {"outputs_on_host": fail})
    with pytest.raises(RuntimeError, match="out of memory"):
        venv.step_wait()
    venv.compiled = programs
    with pytest.raises(RuntimeError, match=r"Call reset\(\) first"):
        venv.step(ACTIONS)
    assert venv.reset().shape == (3, 2)


CALLS = {
    "reset": lambda venv: venv.reset(),
    "step": lambda venv: venv.step(ACTIONS),
    "set_attr": lambda venv: venv.set_attr("length", 3),
    "set_attr of one environment": lambda venv: venv.set_attr("length", 3, 1),
    "set_state": lambda venv: venv.set_state(venv.get_state()),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ctrl_c_before_any_line_leaves_environments_that_a_reset_opens(call):
    lines = 0
    while True:
        venv = started(counter())
        if not interrupted_before_line(lines, lambda venv=venv: call(venv)):
            break
        lines += 1
        assert venv.reset().shape == (3, 2)
        assert venv.step(ACTIONS)[2].tolist() == [False] * 3
        pickle.dumps(venv)
    assert lines > 3


def interrupted_before_line(number, call):
    """Return whether `call` ran this many lines of JaxVecEnv, and so could be interrupted before the next one."""
    left = number

    def trace(frame, event, arg):
        nonlocal left
        if frame.f_code.co_filename != jax_vec_env.__file__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


# --- Copies ---------------------------------------------------------------------------------------------------------

COPIES = {
    "pickle": lambda venv: pickle.loads(pickle.dumps(venv)),
    "cloudpickle": lambda venv: cloudpickle.loads(cloudpickle.dumps(venv)),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_a_copy_can_be_made_between_step_async_and_step_wait(duplicate):
    venv = started(counter())
    for _ in range(4):
        venv.step(ACTIONS)
    venv.step_async(ACTIONS)
    twin = duplicate(venv)
    for _ in range(3):
        ours, theirs = twin.step_wait(), venv.step_wait()
        chex.assert_trees_all_equal(ours[:3], theirs[:3])
        assert [info.keys() for info in ours[3]] == [info.keys() for info in theirs[3]]
        twin.step_async(ACTIONS)
        venv.step_async(ACTIONS)


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_a_copy_can_be_made_before_the_first_reset_and_after_closing(duplicate):
    venv = counter()
    np.testing.assert_array_equal(duplicate(venv).reset(), venv.reset())
    venv.close()
    assert duplicate(venv).reset().shape == (3, 2)


def test_a_copy_shares_no_memory_with_its_original():
    venv = started(make_vec_env("CartPole-v1", 3, seed=0))
    twin = copy.deepcopy(venv)
    twin.step(np.ones(3, int))[3][0]["mine"] = 1
    assert venv.step(np.zeros(3, int))[3][0] == {"TimeLimit.truncated": False}
    assert not np.array_equal(
        twin.get_state()["state.env_states.inner.x_dot"], venv.get_state()["state.env_states.inner.x_dot"]
    )


# --- Forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_in_a_fork_each_call_is_refused_instead_of_waiting_for_ever():
    venv = started(counter())
    calls = (
        lambda: venv.reset(),
        lambda: venv.step(ACTIONS),
        lambda: venv.step_torch(torch.zeros(3, dtype=torch.int64)),
        lambda: venv.get_state(),
        lambda: venv.set_attr("length", 3),
        lambda: counter(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks
        child = os.fork()
    if child == 0:
        refused = 0
        try:
            for call in calls:
                try:
                    call()
                except RuntimeError as error:
                    refused += "forked" in str(error)
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
