"""Shared by the benchmarks: interleaved timing, tables, JSON, and peers that may be absent."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from benchmarks.peers.worker import Side

CHECKOUT = Path(__file__).parent.parent
RESULTS = CHECKOUT / "benchmarks" / "results"

# Not counted. Two, because a function compiles again for its own output if that has other weak types than the start
# had, as in some of gymnax's environments.
WARM_UP_ROUNDS = 2

PACKAGES = ("jax", "jaxlib", "numpy", "gymnasium", "gymnax", "envpool", "pgx", "stable-baselines3", "torch")


class Command(argparse.ArgumentParser):
    """The options that all benchmarks have."""

    def __init__(self, description: str | None, *, parts: Sequence[str] = (), rounds: int = 0) -> None:
        """Add the options that all benchmarks share.

        Args:
          description: the benchmark's docstring.
          parts: the names of its parts, which can be run separately.
          rounds: the number of timed runs of each side; 0: the benchmark has no such option.
        """
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._rounds = rounds
        if parts:
            self.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
        if rounds:
            self.add_argument("--rounds", type=int, help=f"timed runs of each side; default {rounds}; quick: 1")
        self.add_argument("--quick", action="store_true", help="small, to see that it works: no results")
        text = "folder of the JSON file; default benchmarks/results; quick: none"
        self.add_argument("--output", type=Path, help=text)

    def options(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Return the given options, with defaults that depend on --quick. Without it, JAX reads no cache on disk."""
        options = self.parse_args(argv)
        if self._rounds:
            options.rounds = options.rounds or (1 if options.quick else self._rounds)
        options.output = options.output or (None if options.quick else RESULTS)
        if not options.quick:
            # Compile times are figures. In the environment too, for the processes of other sides.
            os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
            jax.config.update("jax_enable_compilation_cache", False)
        return options


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peer(name: str) -> ModuleType | None:
    """Import another library; print a line and return None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = "" if error.name in (None, name) else f" completely: it needs {error.name}"
        print(f"skipped: {name} is not installed{missing} (make bench installs it)")
        return None


@dataclasses.dataclass
class Timing:
    """The seconds of every run of a side."""

    steps: int
    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def steps_per_second(self) -> float:
        """Return the speed of the median run."""
        return self.steps / statistics.median(self.seconds)

    def row(self) -> dict[str, Any]:
        """Return the figures of a table row."""
        slowest, fastest = (self.steps / limit(self.seconds) for limit in (max, min))
        return {"steps_per_second": self.steps_per_second, "slowest": slowest, "fastest": fastest}


def interleave(sides: Mapping[Any, Side], rounds: int, warm_up: int = WARM_UP_ROUNDS) -> dict[Any, Timing]:
    """Time the sides in turns, A B C A B C ..., so that a drift of the machine meets all of them.

    Garbage is collected before each run, so that no side pays for the garbage of another. During a run the collector
    works as usual: a side that creates thousands of info dicts per step pays for them.
    """
    timings = {name: Timing(side.steps) for name, side in sides.items()}
    for count in range(-warm_up, rounds):
        for name, side in sides.items():
            gc.collect()
            start = time.perf_counter()
            result = jax.block_until_ready(side.run())
            seconds = time.perf_counter() - start
            if count >= 0:
                timings[name].seconds.append(seconds)
            del result
    return timings


def run_script(name: str, *arguments: Any, **environment: str) -> dict[str, Any]:
    """Run a script of benchmarks/peers in a new process, and return what it printed last, which is JSON."""
    done = subprocess.run(
        [sys.executable, CHECKOUT / "benchmarks" / "peers" / name, *map(str, arguments)],
        env={**environment, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def machine() -> dict[str, Any]:
    """Return the machine on which the figures are measured."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = lines[0] if lines else model
    return {
        "cpu": model,
        "cores": cores(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "jax_device": jax.devices()[0].device_kind,
        # More than a little at the start means that something else was running.
        "load_average_at_start": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of every installed package that takes part."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def product() -> dict[str, str]:
    """Return git's hashes of the folders of the product, as committed: what is measured, whatever else changes."""
    folders = ("jaxenvs", "bridge")
    command = ["git", "rev-parse", *(f"HEAD:{folder}" for folder in folders)]
    hashes = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.split()
    changed = ["git", "status", "--porcelain", "--", *folders]
    if subprocess.run(changed, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout:
        hashes = [f"{each} and changes" for each in hashes]
    return dict(zip(folders, hashes))


class Report:
    """Prints tables, and writes each row to `<output>/unfinished/<name>.json` once it is measured.

    The file moves to `<output>` when the run ends, so that no page is drawn from one that was stopped. A file of the
    same state of the product is continued, so a run that was stopped loses nothing.
    """

    def __init__(self, name: str, notes: list[str], options: argparse.Namespace) -> None:
        """Start a report: with the rows of the file if this state of the product measured them, else without.

        Args:
          name: the name of the benchmark and of its file.
          notes: what is measured, and how.
          options: what `Command.options` returned.

        Raises:
          SystemExit: the rows of the file are from another machine.
        """
        self.options = options
        self._path: Path | None = options.output and options.output / f"{name}.json"
        settings = {what: value for what, value in vars(options).items() if isinstance(value, int | str | list)}
        self.content: dict[str, Any] = {
            "benchmark": name,
            "settings": settings,
            "notes": notes,
            "machine": machine(),
            "versions": versions(),
            "product": product(),
            "tables": {},
            "bars": [],
        }
        if self._path is not None:
            self._unfinished = self._path.parent / "unfinished" / self._path.name
            for path in (self._path, self._unfinished):
                self._continue(path)
        print(f"# {name}\n")
        for key in ("machine", "versions", "product", "settings"):
            print(f"- {key}: " + ", ".join(f"{what} {value}" for what, value in self.content[key].items()))
        for note in notes:
            print(f"- {note}")

    def _continue(self, path: Path) -> None:
        """Take over what a file has of this state of the product."""
        before = json.loads(path.read_text()) if path.exists() else {}
        if before.get("product") != self.content["product"]:
            return
        cpus = [content["machine"]["cpu"] for content in (before, self.content)]
        if len(set(cpus)) > 1:
            raise SystemExit(f"{path} has figures of {cpus[0]}: continue there, or remove it to start on {cpus[1]}.")
        self.content |= {key: before[key] for key in ("machine", "tables", "bars")}
        self.content["versions"] = before["versions"] | self.content["versions"]

    def add(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Print rows and append them to a table; columns that the first row lacks are not printed."""
        self.content["tables"].setdefault(table, []).extend(rows)
        if rows:
            print(f"\n{markdown(rows)}", flush=True)
        self._write()

    def has(self, table: str, **columns: Any) -> bool:
        """Return whether a table has a row with these values, which need not be measured again."""
        return any(columns.items() <= row.items() for row in self.content["tables"].get(table, []))

    def bar(self, what: str, ratio: float, at_least: float) -> None:
        """Compare a ratio with the target that it must reach; not with --quick, whose sizes are others."""
        if not self.options.quick:
            self.require(what, ratio, f">= {at_least:g}", ratio >= at_least)

    def at_most(self, what: str, value: float, limit: float) -> None:
        """Compare a value with the target that it must not exceed; not with --quick."""
        if not self.options.quick:
            self.require(what, value, f"<= {limit:g}", value <= limit)

    def require(self, what: str, value: float, bar: str, met: bool) -> None:
        """Record a value, its target in words, and whether the value reaches it."""
        self.content["bars"].append({"what": what, "value": value, "bar": bar, "met": bool(met)})
        self._write()

    def finish(self) -> None:
        """Print the targets, and where everything is."""
        bars = self.content["bars"]
        print(f"\n## bars\n\n{markdown(bars) if bars else 'none'}")
        print(f"\n{sum(not bar['met'] for bar in bars)} bars missed")
        if self._path is None:
            print("\nnothing written: --quick figures are no results (choose a folder with --output)")
        else:
            self._write()
            self._unfinished.replace(self._path)
            print(f"\nwrote {self._path.name}")

    def _write(self) -> None:
        if self._path is not None:
            self._unfinished.parent.mkdir(parents=True, exist_ok=True)
            self._unfinished.write_text(compact(self.content))


def compact(content: dict[str, Any]) -> str:
    """JSON with a line for each row of a table, for each note, bar, and whatever else there is."""

    def lines(value: Any, indent: str = " ") -> str:
        if isinstance(value, list) and value:
            return "[\n" + ",\n".join(f"{indent} {json.dumps(each)}" for each in value) + f"\n{indent}]"
        return json.dumps(value)

    parts = {name: lines(value) for name, value in content.items()}
    tables = [f"  {json.dumps(name)}: {lines(rows, '  ')}" for name, rows in content["tables"].items()]
    parts["tables"] = "{\n" + ",\n".join(tables) + "\n }"
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {text}" for name, text in parts.items()) + "\n}\n"


def markdown(rows: list[dict[str, Any]]) -> str:
    """Rows as a markdown table with the columns of the first."""
    columns = list(rows[0])
    cells = [[column.replace("_", " ") for column in columns]]
    cells += [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)
