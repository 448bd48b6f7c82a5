"""Values that arguments are not."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

NAN, INF = math.nan, math.inf


class Anything:
    """Of no class that anybody knows."""

    def __repr__(self) -> str:
        return "Anything()"


NOT_REAL: tuple[Any, ...] = (None, "3", b"3", 3j, True, [], [1], {}, (), Anything(), np.array("3"), np.array([None]))
NOT_A_NUMBER = (*NOT_REAL, NAN, np.float32(NAN), np.array([1.0, 2.0]))
NOT_AN_INT = (*NOT_REAL, NAN, INF, 1.5, 2.0, np.float32(1.0), np.array([1, 2]), np.bool_(True), slice(1))
NOT_POSITIVE = (*NOT_AN_INT, 0, -1, np.int64(-5), -(2**70))
NOT_A_COUNT = (*NOT_POSITIVE, 2**31, 2**70)
NOT_A_SEED = (*NOT_AN_INT, -1, np.int64(-5), -(2**70))
NOT_A_BOOL = (None, 0, 1, "True", 1.0, NAN, [], np.array([True]), Anything())
NOT_A_STR = (None, 0, 1.5, NAN, True, b"CartPole-v1", [], ["CartPole-v1"], {}, Anything())
NOT_A_FUNCTION = (None, 0, "policy", [], {}, np.zeros(2), Anything())
NOT_A_KEY = (None, 0, "key", NAN, [], {}, np.zeros(2, np.uint32), np.uint32(3), jax.random.PRNGKey, Anything())
NOT_AN_ARRAY = (None, "a", b"a", [], {}, Anything(), np.array("a"), np.array([None]), len)
