"""The contents of the infos of a JaxVecEnv."""

import ast
import copy
import json
import operator
import pickle

import cloudpickle
import numpy as np
import pytest

from bridge.host_env.step_infos import StepInfos
from bridge.vec_env.compiled_functions import Outputs
from bridge.vec_env.infos import QuietInfos, ended_infos, update_reset_infos

QUIET = {"TimeLimit.truncated": False}
WRITES = {
    "setitem": lambda info: info.__setitem__("mine", 1),
    "the flag": lambda info: info.__setitem__("TimeLimit.truncated", True),
    "delitem": lambda info: info.__delitem__("TimeLimit.truncated"),
    "update": lambda info: info.update(mine=1),
    "setdefault": lambda info: info.setdefault("mine", 1),
    "pop": lambda info: info.pop("TimeLimit.truncated"),
    "popitem": lambda info: info.popitem(),
    "clear": lambda info: info.clear(),
    "or": lambda info: info.__ior__({"mine": 1}),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_is_written_into_an_info_is_gone_in_the_next_step(write):
    infos = QuietInfos(3)
    first = infos({})
    write(first[1])
    assert first[1] != QUIET
    second = infos({})
    assert second == [QUIET] * 3
    assert second[0] is first[0]
    write(second[1])
    assert infos({}) == [QUIET] * 3


def test_what_is_written_into_the_list_of_infos_is_not_in_the_next():
    infos = QuietInfos(2)
    infos({})[0] = {"mine": 1}
    assert infos({}) == [QUIET] * 2


COPIES = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "cloudpickle": lambda value: cloudpickle.loads(cloudpickle.dumps(value)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "method": lambda info: info.copy(),
    "or": lambda info: info | {},
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_the_copy_of_an_info_is_a_plain_dict(duplicate):
    infos = QuietInfos(2)
    mine = duplicate(infos({})[0])
    assert type(mine) is dict
    assert mine == QUIET
    mine["mine"] = 1
    assert infos({}) == [QUIET] * 2


def test_the_copy_of_all_infos_notices_writes_too():
    infos = pickle.loads(pickle.dumps(QuietInfos(2)))
    infos({})[0]["mine"] = 1
    assert infos({}) == [QUIET] * 2


def step_infos():
    return StepInfos(QuietInfos(3), lambda infos: infos.__setitem__(1, {"told": 1}))


READ = [QUIET, {"told": 1}, QUIET]
READS = {
    "index": lambda infos: [infos[0], infos[1], infos[-1]],
    "slice": lambda infos: infos[:],
    "loop": lambda infos: [info for info in infos],
    "reversed": lambda infos: list(reversed(infos))[::-1],
    "list": list,
    "tuple": lambda infos: [*tuple(infos)],
    "unpack": lambda infos: [*infos],
    "variables": lambda infos: (lambda first, second, third: [first, second, third])(*infos),
    "zip": lambda infos: [info for _, info in zip(range(3), infos, strict=True)],
    "filter": lambda infos: list(filter(None, infos)),
    "method": lambda infos: infos.copy(),
    "plus": lambda infos: operator.add(infos, []),
    "added to": lambda infos: operator.add([], infos),
    "extend": lambda infos: operator.iadd([], infos),
    "times": lambda infos: infos * 1,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": COPIES["pickle"],
    "json": lambda infos: json.loads(json.dumps(infos)),
    "array": lambda infos: np.array(infos, dtype=object).tolist(),
    "equal": lambda infos: READ if infos == READ and infos == READ else None,
    "text": lambda infos: ast.literal_eval(repr(infos)),
    "append": lambda infos: infos.append(QUIET) or infos[:3],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_however_the_infos_of_a_step_are_read_they_are_a_list_of_dicts(read):
    assert read(step_infos()) == READ


def test_the_infos_of_a_step_are_made_once_and_only_if_they_are_read():
    made = []
    infos = StepInfos(QuietInfos(3), lambda infos: made.append(len(infos)))
    assert (len(infos), bool(infos), made) == (3, True, [])
    infos[0]["mine"] = 1
    assert infos[0]["mine"] == 1
    assert made == [3]


def test_the_infos_of_ended_episodes_alone_are_made_and_are_those_of_the_list():
    made = []
    infos = StepInfos(QuietInfos(3), lambda infos: made.append(infos), [1], lambda: [{"episode": 1}])
    assert (infos.ended, infos.at_ends(), made) == ([1], [{"episode": 1}], [])
    assert infos == [QUIET, {"episode": 1}, QUIET]
    assert infos.at_ends()[0] is infos[1]


# (n_steps, num_envs) = (2, 3)
MANY = Outputs(
    terminated=np.array([[True, False, False], [False, True, True]]),
    episode_return=np.arange(6, dtype=np.float32).reshape(2, 3),
    episode_length=np.arange(10, 16, dtype=np.int32).reshape(2, 3),
    final_info={"speed": np.arange(6.0).reshape(2, 3), "place": {"xy": np.arange(12).reshape(2, 3, 2)}},
    final_observation=np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    info={"speed": -np.arange(6.0).reshape(2, 3)},
)
AT = (np.array([0, 0, 1]), np.array([0, 2, 2]))


def test_of_many_steps_and_of_one_the_infos_of_ended_episodes_are_alike():
    infos = ended_infos(MANY, AT, 0.0)
    one = [
        info
        for step, env_indices in ((0, [0, 2]), (1, [2]))
        for info in ended_infos(
            Outputs(*[_at(part, step) for part in MANY]),
            (np.array(env_indices),),
            0.0,
        )
    ]
    for mine, other in zip(infos, one, strict=True):
        mine["episode"].pop("t"), other["episode"].pop("t")
    np.testing.assert_equal(infos, one)
    assert [info["TimeLimit.truncated"] for info in infos] == [False, True, False]
    assert [info["episode"] for info in infos] == [{"r": 0.0, "l": 10}, {"r": 2.0, "l": 12}, {"r": 5.0, "l": 15}]
    assert [info["speed"] for info in infos] == [0.0, 2.0, 5.0]
    np.testing.assert_array_equal(infos[1]["place"]["xy"], [4, 5])
    np.testing.assert_array_equal(infos[2]["terminal_observation"], [20, 21, 22, 23])


def _at(part, step):
    if isinstance(part, dict):
        return {name: _at(value, step) for name, value in part.items()}
    return part[step] if isinstance(part, np.ndarray) else part


def test_a_terminal_observation_is_in_memory_of_its_own():
    infos = ended_infos(MANY._replace(final_observation={"a": MANY.final_observation}), AT, 0.0)
    arrays = [info["terminal_observation"]["a"] for info in infos]
    for i, array in enumerate(arrays):
        assert array.flags.writeable
        assert array.base is None
        assert not any(np.shares_memory(array, other) for other in [*arrays[i + 1 :], MANY.final_observation])


def test_without_a_final_observation_infos_have_none():
    assert "terminal_observation" not in ended_infos(MANY._replace(final_observation=()), AT, 0.0)[0]


def test_the_last_reset_counts_of_an_environment_whose_episodes_ended_twice():
    reset_infos = [{"before": True} for _ in range(3)]
    update_reset_infos(reset_infos, MANY.info, AT)
    assert reset_infos == [{"speed": 0.0}, {"before": True}, {"speed": -5.0}]
