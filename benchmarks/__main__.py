"""Run all benchmarks, or those that are named.

    python -m benchmarks [training ...]

What benchmarks/results has of this state of the product is not measured again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks import common


def main(argv: list[str] | None = None) -> None:
    paths = sorted((common.CHECKOUT / "benchmarks").glob("*.py"))
    scripts = [path.stem for path in paths if path.stem != "__main__" and "\ndef main(" in path.read_text()]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"default: all of {', '.join(scripts)}")
    names = parser.parse_args(argv).names or scripts
    if not set(names) <= set(scripts):
        parser.error(f"names must be of {', '.join(scripts)}, got {', '.join(names)}.")
    for name in names:
        # In a process each, so that none is affected by another's settings.
        if status := subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            sys.exit(status)


if __name__ == "__main__":
    main()
