"""Programs of a user's operations end where Stable-Baselines3 does: many drawn ones, and those that once did not.

More of them: `python -m tests.differential --programs 5000`.
"""

from pathlib import Path

import pytest
import stable_baselines3

import bridge
from tests.differential.comparing import KNOWN, compare
from tests.differential.drawing import OBSERVATIONS
from tests.differential.running import Program
from tests.differential.searching import search
from tests.differential.settings import ALGORITHMS, OURS, Setting

ENVS = ("jax", "gymnasium")
# Where programs run, and how many of each algorithm of SB3; of each other algorithm, half as many. In JAX environments
# most compile what none before did. `make test` runs the first in Gymnasium's environments.
PROGRAMS = {"first": ("gymnasium", 3), "jax": ("jax", 6), "gymnasium": ("gymnasium", 30)}


def _numbers(algorithm, env, programs):
    algorithms = OURS if algorithm in OURS else ALGORITHMS
    step = len(algorithms) * len(ENVS)
    number = algorithms.index(algorithm) + len(algorithms) * ENVS.index(env)
    numbers = range(number, number + programs * step, step)
    return [-1 - number for number in numbers] if algorithm in OURS else numbers


@pytest.mark.thorough(but=[f"{name}-first" for name in (*ALGORITHMS, *OURS)])
@pytest.mark.parametrize(("env", "programs"), PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, *OURS])
def test_programs_end_where_stable_baselines3_does(algorithm, env, programs):
    programs = programs if algorithm in stable_baselines3.__all__ else programs // 2
    finds = search(_numbers(algorithm, env, programs), few=True, most=1)
    assert not finds, str(finds[0])


@pytest.mark.thorough
@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, *OURS])
def test_programs_of_all_settings_end_where_stable_baselines3_does(algorithm, env):
    finds = search(_numbers(algorithm, env, 15), most=1)
    assert not finds, str(finds[0])


def few(algorithm, **settings):
    """A setting that shares its compiled functions with those that are drawn."""
    return Setting(algorithm, observations=OBSERVATIONS[algorithm], **settings)


def program(setting, *operations):
    return Program(setting, operations)


def learn(steps, callback=None, resets=True, log_interval=4):
    return "learn", steps, resets, callback, log_interval


def each(*events):
    """A callback of each step, with operations in some of its calls."""
    return "each", 1, events


def every(steps, *events):
    return "every", steps, events


ZEROING = "weights", 1, "inplace", "fill", 0.0

# Each failed once; the names say what was lost.
FOUND = {
    "a subclass's train zeroes the critic": program(
        few("SAC", env="gymnasium", overrides=(("train", *ZEROING),)), learn(8), ("look", "weights")
    ),
    "a subclass's train zeroes the critic of a model that does not learn": program(
        few("SAC", env="gymnasium", exact=False, num_envs=2, frequency="third", overrides=(("train", *ZEROING),)),
        learn(8),
        ("look", "weights"),
    ),
    "a subclass's _on_step zeroes the critic": program(
        few("SAC", env="gymnasium", overrides=(("_on_step", *ZEROING),)), learn(8), ("look", "weights")
    ),
    "parameters restored after an update by hand": program(
        few("SAC", env="gymnasium"),
        learn(1),
        ("keep", "copy"),
        ("train", 1),
        ("restore", "copy"),
        ("save",),
        ("travel", "saved"),
        ("look", "weights"),
    ),
    "weights after an update by hand": program(few("SAC", env="gymnasium"), learn(1), ("train", 1)),
    "critics zeroed where a rollout starts": program(
        few("SAC", env="gymnasium"), learn(8, each(("rollout start", 5, ("write", *ZEROING))))
    ),
    "state-dependent exploration, critics filled in a callback": program(
        Setting("SAC", env="gymnasium", exact=False, sde=True),
        learn(12, each(("step", 5, ("write", "weights", 1, "inplace", "fill", 0.25)))),
    ),
    "a predict of one's own": program(few("DQN", env="gymnasium", overrides=(("predict none",),)), learn(4)),
    "a predict of one's own in a JAX environment": program(few("TD3", overrides=(("predict none",),)), learn(4)),
    "a learning rate for each optimiser": program(few("SAC", env="gymnasium", overrides=(("rates apart",),)), learn(4)),
    "a learning rate for each optimiser in a JAX environment": program(
        few("SAC", overrides=(("rates apart",),)), learn(4)
    ),
    "a learning rate of one's own, on-policy": program(few("PPO", overrides=(("rates apart",),)), learn(4)),
    "a learning rate schedule put in the place of a number's": program(
        few("DQN"), ("write", "rate", "linear", 0.05), learn(24)
    ),
    "rows of short episodes": program(few("SAC", length=1), learn(24)),
    "Dict observations": program(few("DQN"), learn(4)),
    "Discrete observations": program(few("TD3"), learn(4)),
    "methods put into a replay buffer": program(
        few("SAC"), ("wrap", "buffer", "add"), ("wrap", "buffer", "sample"), learn(8)
    ),
    "methods put into a rollout buffer": program(
        few("PPO"), ("wrap", "buffer", "compute_returns_and_advantage"), learn(8)
    ),
    "methods put into the environments": program(few("PPO"), ("wrap", "env", "step_wait"), learn(8)),
    "a target put anew": program(few("DQN", env="gymnasium"), ("write", "replace", 1, "copy"), learn(12)),
    "an _update_info_buffer of one's own": program(few("PPO", overrides=(("_update_info_buffer",),)), learn(8)),
    "updates that come before a rollout starts": program(
        few("TD3"), learn(4, each(("rollout start", 2, ("look", "counters"))))
    ),
    "infos of an end that a callback sees now and then": program(
        few("SAC", length=1), learn(4, every(3, ("step", 0, ("locals",))))
    ),
    "a training that goes on after an exception at the end of a rollout": program(
        few("DQN"), learn(8, each(("rollout end", 5, ("raise",)))), learn(8, resets=False)
    ),
    "a replay buffer of one row that Stable-Baselines3 saved": program(
        few("DDPG", env="gymnasium"), learn(4), ("replay", "other")
    ),
    "other environments in a wrapper": program(
        Setting("PPO", wrapper="monitor", num_envs=2),
        learn(8),
        ("inner", 2),
        learn(8, resets=False),
        ("look", "counters"),
    ),
    "a logger of one's own without formats": program(few("PPO", length=1, logged="own"), learn(17, log_interval=1)),
    "a learning rate with a memory": program(few("PPO", rate="decaying"), learn(12)),
    "starts of episodes that are saved in a callback": program(
        few("PPO"), learn(4, each(("step", 1, ("save",)))), ("travel", "saved")
    ),
    "rewards that a callback adds to": program(few("PPO"), learn(4, each(("step", 0, ("reward", 2.0))))),
    "rewards that a callback adds to, off-policy": program(few("SAC"), learn(8, each(("step", 5, ("reward", 2.0))))),
    "weights written in an overridden method in the middle of a rollout": program(
        few("PPO", env="gymnasium", overrides=(("_update_info_buffer", "weights", 0, "inplace", "fill", 0.25),)),
        learn(4),
    ),
    "a number that a features extractor reads": program(
        Setting("DQN", extractor="scaled"), learn(4), ("write", "scale", 0.5), learn(4)
    ),
    "action noise of a class of one's own": program(few("TD3", noise="own"), learn(8)),
    "a target that a callback sees before it follows": program(
        few("DQN"), learn(8, each(("step", 4, ("look", "weights"))))
    ),
    "a target that a callback sees before it follows in the middle of an iteration": program(
        Setting("DQN", num_envs=2, frequency="third"),
        learn(12, each(("step", 1, ("look", "weights")), ("step", 3, ("look", "weights")))),
    ),
    "weights that a callback writes where the target is to follow": program(
        few("DQN"), learn(8, every(5, ("step", 0, ("write", "weights", 0, "inplace", "scale", 0.5))))
    ),
    "learning_starts that a callback raises": program(
        few("SAC"), learn(8, each(("step", 1, ("write", "setting", "learning_starts", 6))))
    ),
    "observations before the step in a callback that looks now and then": program(
        few("SAC"), learn(12, every(5, ("step", 1, ("look", "counters"))))
    ),
    "two parts of a target that share memory": program(
        few("SAC", env="gymnasium"), learn(4, each(("step", 2, ("write", "assign", 2, "tied"))))
    ),
    "weights that an environment writes after an episode was truncated": program(
        Setting("A2C", env="gymnasium", observations="discrete", length=3, truncates=1),
        ("play", (("env step", 3, ("write", "weights", 0, "set_parameters", "scale", -1.0)),)),
        learn(1),
    ),
    "a layer that a buffer replaces while it samples": program(
        Setting("SAC", env="gymnasium", logged="own"),
        ("wrap", "buffer", "sample", 5, ("write", "replace", 3, "layer")),
        learn(12, log_interval=1),
    ),
    "a layer that an update of the learning rate replaces": program(
        Setting("RecurrentPPO"),
        ("wrap", "model", "_update_learning_rate", 1, ("write", "replace", 0, "layer")),
        learn(1),
    ),
    "observations before the step in a callback": program(
        few("DQN"), learn(8, each(("step", 5, ("look", "counters"))))
    ),
}


@pytest.mark.thorough(but=["a subclass's train zeroes the critic", "a layer that a buffer replaces while it samples"])
@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_ends_where_stable_baselines3_does(name):
    assert compare(FOUND[name]) is None


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["DQN", "SAC", "TD3", "DDPG", "QRDQN", "TQC"])
def test_hindsight_ends_where_stable_baselines3_does(algorithm):
    """On the host, where goals come from NumPy's generator: learning, by hand too, files, and the other library."""
    found = program(
        Setting(algorithm, env="gymnasium", observations="goal"),
        learn(24),
        ("look", "weights", "sample"),
        ("train", 2),
        learn(12, each(), resets=False),
        ("replay", "other"),
        ("look", "weights"),
        learn(12, resets=False),
        ("look", "moments"),
        ("save",),
        ("travel", "saved"),
        learn(6, resets=False),
        ("travel", "own", 1),
        ("look", "buffer"),
        learn(30),  # the new buffer is empty, and learning starts again
        ("look", "buffer"),
    )
    assert compare(found) is None


def test_documents_say_which_differences_are_known():
    text = Path(bridge.__file__).parent.parent.joinpath("docs", "stable-baselines3.md").read_text()
    section = " ".join(text.partition("## What differs")[2].partition("\n## ")[0].split())
    assert [known.reason for known in KNOWN if known.reason not in section] == []
