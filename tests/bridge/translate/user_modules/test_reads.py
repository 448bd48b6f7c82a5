"""What pure functions read is recorded, wherever it is, and compared without code of users."""

import builtins
import types

import pytest
from torch import nn

from bridge.translate.user_modules.purity import Purity


class Helper:
    scale = 2.0

    def __call__(self, x):
        return x * self.scale


def keyed(x, *, by=1.0, of=lambda GLOBAL: 0):
    return x * by * _Private__scale * GLOBAL * BUILTIN  # noqa: F821


GLOBAL = _Private__scale = 1.0


class Private:
    def __call__(self, x):
        return x * __scale  # noqa: F821


@pytest.mark.parametrize("where", ["__kwdefaults__", "GLOBAL", "BUILTIN", "_Private__scale", "class", "dict"])
def test_what_functions_read_in_hidden_places_is_compared(where, monkeypatch):
    monkeypatch.setattr(builtins, "BUILTIN", 1.0, raising=False)
    private = Private()
    purity = Purity(keyed, private, other := Helper())
    assert purity.reason is None
    assert purity.reads.is_current()
    if where == "__kwdefaults__":
        monkeypatch.setitem(keyed.__kwdefaults__, "by", 2.0)
    elif where == "BUILTIN":
        monkeypatch.setattr(builtins, "BUILTIN", 2.0)
    elif where == "class":
        private.__class__ = Helper
    elif where == "dict":
        other.__dict__ = {"scale": 3.0}
    else:
        monkeypatch.setitem(globals(), where, 2.0)
    assert not purity.reads.is_current()


class Watched:
    """Runs code of the user when it is asked for an attribute that it has not."""

    def __getattr__(self, name):
        SEEN.append(name)
        raise AttributeError(name)


SEEN, WATCHED, LONG = [], Watched(), types.SimpleNamespace(scale=2.0, long=[1.0] * 1000, module=nn.Linear(1, 1))


def test_reading_runs_no_code_of_objects_and_looks_at_no_more_than_is_read():
    SEEN.clear()  # pytest asks all that it finds in a module
    assert "Watched" in Purity(lambda left: left * len(WATCHED)).reason
    assert SEEN == []
    assert "reads a list of more than" in Purity(lambda left: left * LONG.long[0]).reason
    assert Purity(lambda left: left * LONG.scale).reason is None
