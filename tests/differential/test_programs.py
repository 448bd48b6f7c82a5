"""Programs of a user's operations end where Stable-Baselines3 does: many drawn ones, and those that once did not.

More of them: `python -m tests.differential --programs 5000`.
"""

import itertools
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
# Of each algorithm, of sb3-contrib's half as many: 306 together. In JAX environments most compile what none before did.
PROGRAMS = {"jax": 6, "gymnasium": 30}
# In make test, the first of them: 36 together.
FIRST = {"jax": 1, "gymnasium": 3}


def _how_many(algorithm, env):
    return PROGRAMS[env] if algorithm in stable_baselines3.__all__ else PROGRAMS[env] // 2


def _numbers(algorithm, env, programs):
    algorithms = OURS if algorithm in OURS else ALGORITHMS
    step = len(algorithms) * len(ENVS)
    number = algorithms.index(algorithm) + len(algorithms) * ENVS.index(env)
    numbers = range(number, number + programs * step, step)
    return [-1 - number for number in numbers] if algorithm in OURS else numbers


@pytest.mark.thorough(but=[f"{name}-gymnasium-first" for name in (*ALGORITHMS, *OURS)])
@pytest.mark.parametrize(
    ("algorithm", "env", "which"),
    itertools.product((*ALGORITHMS, *OURS), ENVS, ["first", "all"]),
)
def test_programs_end_where_stable_baselines3_does(algorithm, env, which):
    programs = FIRST[env] if which == "first" else _how_many(algorithm, env)
    result = search(_numbers(algorithm, env, programs), few=True, most=1)
    assert not result.finds, str(result.finds[0])
    assert result.count == programs


@pytest.mark.thorough
@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, *OURS])
def test_programs_of_all_settings_end_where_stable_baselines3_does(algorithm, env):
    result = search(_numbers(algorithm, env, 15), most=1)
    assert not result.finds, str(result.finds[0])


def few(algorithm, **settings):
    """A setting that shares its compiled functions with those that are drawn."""
    return Setting(algorithm, observations=OBSERVATIONS[algorithm], **settings)


def zeroing(*places):
    return tuple((place, "weights", 1, "inplace", "fill", 0.0) for place in places)


# Each failed once; the names say what was lost.
FOUND = {
    "a subclass's train zeroes the critic": Program(
        few("SAC", env="gymnasium", overrides=zeroing("train")),
        (("learn", 8, True, None, 4), ("look", "weights")),
    ),
    "a subclass's train zeroes the critic of a model that does not learn": Program(
        few("SAC", env="gymnasium", exact=False, num_envs=2, frequency="third", overrides=zeroing("train")),
        (("learn", 8, True, None, 4), ("look", "weights")),
    ),
    "a subclass's _on_step zeroes the critic": Program(
        few("SAC", env="gymnasium", overrides=zeroing("_on_step")),
        (("learn", 8, True, None, 4), ("look", "weights")),
    ),
    "parameters restored after an update by hand": Program(
        few("SAC", env="gymnasium"),
        (
            ("learn", 1, True, None, 4),
            ("keep", "copy"),
            ("train", 1),
            ("restore", "copy"),
            ("save",),
            ("travel", "saved"),
            ("look", "weights"),
        ),
    ),
    "weights after an update by hand": Program(
        few("SAC", env="gymnasium"), (("learn", 1, True, None, 4), ("train", 1))
    ),
    "critics zeroed where a rollout starts": Program(
        few("SAC", env="gymnasium"),
        (("learn", 8, True, ("each", 1, (("rollout start", 5, ("write", *zeroing("")[0][1:])),)), 4),),
    ),
    "state-dependent exploration, critics filled in a callback": Program(
        Setting("SAC", env="gymnasium", exact=False, sde=True),
        (("learn", 12, True, ("each", 1, (("step", 5, ("write", "weights", 1, "inplace", "fill", 0.25)),)), 4),),
    ),
    "a predict of one's own": Program(
        few("DQN", env="gymnasium", overrides=(("predict none",),)), (("learn", 4, True, None, 4),)
    ),
    "a predict of one's own in a JAX environment": Program(
        few("TD3", overrides=(("predict none",),)), (("learn", 4, True, None, 4),)
    ),
    "a learning rate for each optimiser": Program(
        few("SAC", env="gymnasium", overrides=(("rates apart",),)), (("learn", 4, True, None, 4),)
    ),
    "a learning rate for each optimiser in a JAX environment": Program(
        few("SAC", overrides=(("rates apart",),)), (("learn", 4, True, None, 4),)
    ),
    "a learning rate of one's own, on-policy": Program(
        few("PPO", overrides=(("rates apart",),)), (("learn", 4, True, None, 4),)
    ),
    "a learning rate schedule put in the place of a number's": Program(
        few("DQN"), (("write", "rate", "linear", 0.05), ("learn", 24, True, None, 4))
    ),
    "rows of short episodes": Program(few("SAC", length=1), (("learn", 24, True, None, 4),)),
    "Dict observations": Program(few("DQN"), (("learn", 4, True, None, 4),)),
    "Discrete observations": Program(few("TD3"), (("learn", 4, True, None, 4),)),
    "methods put into a replay buffer": Program(
        few("SAC"), (("wrap", "buffer", "add"), ("wrap", "buffer", "sample"), ("learn", 8, True, None, 4))
    ),
    "methods put into a rollout buffer": Program(
        few("PPO"), (("wrap", "buffer", "compute_returns_and_advantage"), ("learn", 8, True, None, 4))
    ),
    "methods put into the environments": Program(
        few("PPO"), (("wrap", "env", "step_wait"), ("learn", 8, True, None, 4))
    ),
    "a target put anew": Program(
        few("DQN", env="gymnasium"), (("write", "replace", 1, "copy"), ("learn", 12, True, None, 4))
    ),
    "an _update_info_buffer of one's own": Program(
        few("PPO", overrides=(("_update_info_buffer",),)), (("learn", 8, True, None, 4),)
    ),
    "updates that come before a rollout starts": Program(
        few("TD3"), (("learn", 4, True, ("each", 1, (("rollout start", 2, ("look", "counters")),)), 4),)
    ),
    "infos of an end that a callback sees now and then": Program(
        few("SAC", length=1), (("learn", 4, True, ("every", 3, (("step", 0, ("locals",)),)), 4),)
    ),
    "a training that goes on after an exception at the end of a rollout": Program(
        few("DQN"),
        (
            ("learn", 8, True, ("each", 1, (("rollout end", 5, ("raise",)),)), 4),
            ("learn", 8, False, None, 4),
        ),
    ),
    "a replay buffer of one row that Stable-Baselines3 saved": Program(
        few("DDPG", env="gymnasium"), (("learn", 4, True, None, 4), ("replay", "other"))
    ),
    "other environments in a wrapper": Program(
        Setting("PPO", wrapper="monitor", num_envs=2),
        (("learn", 8, True, None, 4), ("inner", 2), ("learn", 8, False, None, 4), ("look", "counters")),
    ),
    "a logger of one's own without formats": Program(
        few("PPO", length=1, logged="own"), (("learn", 17, True, None, 1),)
    ),
    "a learning rate with a memory": Program(few("PPO", rate="decaying"), (("learn", 12, True, None, 4),)),
    "starts of episodes that are saved in a callback": Program(
        few("PPO"), (("learn", 4, True, ("each", 1, (("step", 1, ("save",)),)), 4), ("travel", "saved"))
    ),
    "rewards that a callback adds to": Program(
        few("PPO"), (("learn", 4, True, ("each", 1, (("step", 0, ("reward", 2.0)),)), 4),)
    ),
    "rewards that a callback adds to, off-policy": Program(
        few("SAC"), (("learn", 8, True, ("each", 1, (("step", 5, ("reward", 2.0)),)), 4),)
    ),
    "weights written in an overridden method in the middle of a rollout": Program(
        few("PPO", env="gymnasium", overrides=(("_update_info_buffer", "weights", 0, "inplace", "fill", 0.25),)),
        (("learn", 4, True, None, 4),),
    ),
    "a number that a features extractor reads": Program(
        Setting("DQN", extractor="scaled"),
        (("learn", 4, True, None, 4), ("write", "scale", 0.5), ("learn", 4, True, None, 4)),
    ),
    "action noise of a class of one's own": Program(few("TD3", noise="own"), (("learn", 8, True, None, 4),)),
    "a target that a callback sees before it follows": Program(
        few("DQN"), (("learn", 8, True, ("each", 1, (("step", 4, ("look", "weights")),)), 4),)
    ),
    "a target that a callback sees before it follows in the middle of an iteration": Program(
        Setting("DQN", num_envs=2, frequency="third"),
        (("learn", 12, True, ("each", 1, (("step", 1, ("look", "weights")), ("step", 3, ("look", "weights")))), 4),),
    ),
    "weights that a callback writes where the target is to follow": Program(
        few("DQN"),
        (("learn", 8, True, ("every", 5, (("step", 0, ("write", "weights", 0, "inplace", "scale", 0.5)),)), 4),),
    ),
    "learning_starts that a callback raises": Program(
        few("SAC"),
        (("learn", 8, True, ("each", 1, (("step", 1, ("write", "setting", "learning_starts", 6)),)), 4),),
    ),
    "observations before the step in a callback that looks now and then": Program(
        few("SAC"), (("learn", 12, True, ("every", 5, (("step", 1, ("look", "counters")),)), 4),)
    ),
    "two parts of a target that share memory": Program(
        few("SAC", env="gymnasium"),
        (("learn", 4, True, ("each", 1, (("step", 2, ("write", "assign", 2, "tied")),)), 4),),
    ),
    "observations before the step in a callback": Program(
        few("DQN"), (("learn", 8, True, ("each", 1, (("step", 5, ("look", "counters")),)), 4),)
    ),
}


# Of what other tests show, with networks and wrappers that drawn programs do not have.
SHOWN_ELSEWHERE = (
    "state-dependent exploration, critics filled in a callback",
    "a number that a features extractor reads",
    "other environments in a wrapper",
    "a target that a callback sees before it follows in the middle of an iteration",
)


@pytest.mark.thorough(but=["a subclass's train zeroes the critic"])
@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_ends_where_stable_baselines3_does(name):
    assert compare(FOUND[name]) is None


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["DQN", "SAC", "TD3", "DDPG", "QRDQN", "TQC"])
def test_hindsight_ends_where_stable_baselines3_does(algorithm):
    """On the host, where goals come from NumPy's generator: learning, by hand too, files, and the other library."""
    program = Program(
        Setting(algorithm, env="gymnasium", observations="goal"),
        (
            ("learn", 24, True, None, 4),
            ("look", "weights"),
            ("look", "sample"),
            ("train", 2),
            ("learn", 12, False, "each", 4),
            ("replay", "other"),
            ("look", "weights"),
            ("learn", 12, False, None, 4),
            ("look", "moments"),
            ("save",),
            ("travel", "saved"),
            ("learn", 6, False, None, 4),
            ("travel", "own", 1),
            ("look", "buffer"),
            ("learn", 30, True, None, 4),  # the new buffer is empty, and learning starts again
            ("look", "buffer"),
        ),
    )
    assert compare(program) is None


def test_documents_say_which_differences_are_known():
    text = Path(bridge.__file__).parent.parent.joinpath("docs", "stable-baselines3.md").read_text()
    section = " ".join(text.partition("## What differs")[2].partition("\n## ")[0].split())
    assert [known.reason for known in KNOWN if known.reason not in section] == []
