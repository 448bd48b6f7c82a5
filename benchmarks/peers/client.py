"""The benchmark's side of other libraries: their virtual environments and workers."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self, cast

from benchmarks.common import CHECKOUT
from benchmarks.peers.worker import Setting, Side

ENVIRONMENTS = CHECKOUT / ".bench"


def interpreter(name: str, install: bool = False) -> Path | None:
    """Return a Python with another library, installed once in `.bench/<name>` from `<name>-requirements.txt`.

    Returns:
      None, after a line that says why, if it is not installed and cannot or must not be.
    """
    requirements = Path(__file__).parent / f"{name}-requirements.txt"
    folder = ENVIRONMENTS / name
    python, installed = folder / "bin" / "python", folder / "installed.txt"
    constraints = constraints_beside(requirements.read_text())
    wanted = requirements.read_text() + constraints
    if installed.exists() and installed.read_text() == wanted:
        return python
    if not install:
        print(f"skipped: {name} is not installed in {folder.relative_to(CHECKOUT)}; a full run does that")
        return None
    print(f"installing {name} in {folder.relative_to(CHECKOUT)} ...", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    (folder / "constraints.txt").write_text(constraints)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
    if subprocess.run([*pip, "-c", folder / "constraints.txt"], check=False).returncode:
        print(f"skipped: {name} could not be installed")
        return None
    installed.write_text(wanted)
    return python


def constraints_beside(requirements: str) -> str:
    """Return our own versions, except for packages that the requirements pin."""
    pinned = {line.partition("==")[0] for line in requirements.splitlines() if "==" in line}
    ours = (CHECKOUT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in ours if line.partition("==")[0] not in pinned)


def versions(python: Path, packages: Sequence[str]) -> str:
    """Return the versions of packages in the environment of a library."""
    code = "import importlib.metadata, sys\nfor name in sys.argv[1:]: print(name, importlib.metadata.version(name))"
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
    return ", ".join(done.stdout.splitlines())


class Worker:
    """A process that runs `worker.answer`, with the cores and the environment variables of this one."""

    def __init__(self, module: str, python: Path | str = sys.executable) -> None:
        """Start the process.

        Args:
          module: whose `__main__` answers.
          python: of the environment with what it imports.
        """
        self.module = module
        # jaxenvs.learn gives XLA's pool of this process some threads to spare; the peers' pools stay as they come.
        environment = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
        self._process = subprocess.Popen(
            [python, "-m", module],
            cwd=CHECKOUT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def prepare(self, setting: Setting, iterations: int, compiler_options: Mapping[str, str]) -> Side:
        """Compile a training in the process, with JAX's defaults or other options. It replaces the one before."""
        answer = self.ask(
            do="prepare",
            setting=dataclasses.asdict(setting),
            iterations=iterations,
            compiler_options=dict(compiler_options),
        )
        return Side(lambda: self.ask(do="run"), **answer)

    def ask(self, **command: Any) -> Any:
        """Send a command, whose name is its `do`, and return the answer of the process."""
        commands, answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        try:
            print(json.dumps(command), file=commands, flush=True)
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{self.module} ended with {self._process.wait()}, asked to {command['do']}; see above.")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends when there are no more commands
