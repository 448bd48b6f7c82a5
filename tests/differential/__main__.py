"""Runs many programs, and prints those that fail, and the smallest of each kind.

python -m tests.differential --programs 5000 --seed 0
"""

from __future__ import annotations

import argparse

import tests.conftest  # noqa: F401  (where compiled functions are kept)
from tests.differential.searching import search


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=300, help="how many")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the number of the first of them; those below 0 are of the algorithms that SB3 does not have",
    )
    parser.add_argument("--env", choices=["jax", "gymnasium"], action="append", help="of these environments alone")
    parser.add_argument("--few", action="store_true", help="settings that share few compiled functions")
    parser.add_argument("--most", type=int, default=20, help="stop after so many kinds of differences")
    parser.add_argument("--smaller", type=int, default=150, help="try so many smaller programs for each kind")
    arguments = parser.parse_args()
    numbers = range(arguments.seed, arguments.seed + arguments.programs)
    envs = tuple(arguments.env or ("jax", "gymnasium"))
    finds = search(numbers, envs, arguments.few, arguments.most, arguments.smaller)
    print(f"{len(finds)} kinds of differences in {len(numbers)} programs")
    raise SystemExit(bool(finds))


if __name__ == "__main__":
    main()
