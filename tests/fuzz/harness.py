"""Calls with bad arguments: what comes of each, counted.

A case is good if the call raises in code of this project, before anything is traced, with a message that names the
argument. Cases of one function stand in a table: arguments that are right, and for each argument values that are not.
"""

from __future__ import annotations

import collections
import contextlib
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
OURS = (str(ROOT / "jaxenvs"), str(ROOT / "bridge"))
TIME_LIMIT = 20.0  # seconds; a case takes milliseconds, but machines that run tests are busy
MOST_THIRD_PARTY = 0.02


class Case(NamedTuple):
    """A call, the argument of it that is bad, and how a report names the two."""

    name: str
    argument: str
    call: Callable[[], Any]


class HangsError(BaseException):
    """Not an Exception, so that no code under test takes it for one of its own."""


def cases(
    function: Callable[..., Any], good: dict[str, Any], bad: dict[str, Iterable[Any]], name: str | None = None
) -> Iterator[Case]:
    """One case for each value in `bad`, with the other arguments from `good`.

    Args:
      bad: the values by the argument's name. A name may be given in two parts, as "gravity: CartPole.gravity": the
        keyword, and what the message must have.
      name: of the function, where it has none that tells.
    """
    for argument, values in bad.items():
        keyword, _, expected = argument.partition(": ")
        for value in values:
            with contextlib.suppress(Exception):
                shown = f"{name or function.__qualname__}({keyword}={value!r:.40})"
            yield Case(shown, expected or keyword, lambda value=value, k=keyword: function(**{**good, k: value}))


def outcome(case: Case) -> str:
    """ "clear"; "unnamed", "third-party", "accepted" or "hangs" with what happened."""

    def interrupt(*_: Any) -> None:
        raise HangsError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT)
    try:
        returned = case.call()
    except HangsError:
        return "hangs"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        if not where.filename.startswith(OURS):
            return f"third-party: {type(error).__name__} in {where.filename}: {error!s:.100}"
        if case.argument not in str(error):
            return f"unnamed: {type(error).__name__}: {error!s:.150}"
        return "clear"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return f"accepted: {returned!r:.80}"


def require_clear(all_cases: Iterable[Case], at_least: int) -> None:
    """Assert that there are enough cases, that none is accepted, hangs or is unnamed, and that few are third-party."""
    outcomes = {f"{number}: {case.name}": outcome(case) for number, case in enumerate(all_cases)}
    kinds = collections.Counter(found.partition(":")[0] for found in outcomes.values())
    wrong = [f"{name}: {found}" for name, found in outcomes.items() if found != "clear"]
    report = "\n".join([str(dict(kinds)), *wrong])
    assert len(outcomes) >= at_least, report
    assert not kinds.keys() - {"clear", "third-party"}, report
    assert kinds["third-party"] <= MOST_THIRD_PARTY * len(outcomes), report
