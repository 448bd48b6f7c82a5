"""The source of engines: user code is called inside of the session's door alone, and nothing else syncs."""

import ast
import pathlib

import bridge
from tests.bridge.algorithms.user_code.own_code_models import (
    AtStep,
    make,
)

ENGINE = [path for room in ("algorithms", "engine") for path in pathlib.Path("bridge", room).rglob("*.py")]
CALLBACKS = {
    *("on_training_start", "on_training_end", "on_rollout_start", "on_rollout_end", "on_step", "update_locals"),
    *("_on_rollout_start", "_on_rollout_end"),
}
SB3S_LOOPS = {"train", "collect_rollouts"}
CALL_SB3S_LOOPS = {"on_policy_algorithm.py", "off_policy_algorithm.py"}
CONTEXTS = {"user_code", "torch_code"}


def calls_outside_of_the_door(source):
    """Calls of callbacks on anything but a door, and of SB3's loops by `super()`, outside of the session's contexts."""
    found = []

    def visit(node, is_inside):
        if isinstance(node, ast.With):
            names = {
                item.context_expr.func.attr
                for item in node.items
                if isinstance(item.context_expr, ast.Call) and isinstance(item.context_expr.func, ast.Attribute)
            }
            is_inside = is_inside or not names.isdisjoint(CONTEXTS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not is_inside:
            owner, name = ast.unparse(node.func.value), node.func.attr
            is_callbacks = name in CALLBACKS and owner.split(".")[-1] not in ("door", "_door")
            if is_callbacks or (owner == "super()" and name in SB3S_LOOPS):
                found.append(f"{owner}.{name}, line {node.lineno}")
        for child in ast.iter_child_nodes(node):
            visit(child, is_inside)

    visit(ast.parse(source), False)
    return found


def test_no_engine_calls_user_code_but_through_the_door():
    found = {}
    assert {path.name for path in ENGINE} > CALL_SB3S_LOOPS | {"session.py"}  # which may have been renamed
    for path in ENGINE:
        outside = calls_outside_of_the_door(path.read_text())
        if path.name == "session.py":  # the door itself: where the callback is known to do nothing
            outside = [each for each in outside if not each.startswith("self.callback")]
        # The super() of an algorithm's own class is ours; that of these two is SB3's.
        if path.name not in CALL_SB3S_LOOPS:
            outside = [each for each in outside if not each.startswith("super()")]
        # Not a callback's: the target networks of DQN in `learn`.
        outside = [each for each in outside if not each.startswith("settings.on_step")]
        if outside:
            found[str(path)] = outside
    assert found == {}


def test_a_call_outside_of_the_door_is_found():
    assert calls_outside_of_the_door("callback.on_step()")
    assert calls_outside_of_the_door("def f(self):\n    return super().train()")
    assert not calls_outside_of_the_door("with self._session.user_code():\n    super().train()")
    assert not calls_outside_of_the_door("door.on_rollout_start()")


def test_only_the_session_syncs():
    for path in ENGINE:
        if path.name != "session.py":
            assert ".sync()" not in path.read_text(), path


def test_inside_of_the_door_nothing_is_kept_in_vectors():
    model = make(bridge.SAC)
    states = []

    def look(model):
        model.train(gradient_steps=1, batch_size=8)
        states.append(model._session.on_device)

    model.learn(20, AtStep([10, 15], look))
    assert states == [False, False]
