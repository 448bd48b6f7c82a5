"""Environments of their own, with nothing of the checkout in them: what users have."""

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent.parent
CONSTRAINTS = CHECKOUT / "constraints.txt"


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    return result.stdout


class Installed:
    """An empty environment with one package in it, and what that needs; and an empty folder to work in."""

    def __init__(self, folder, package, extra="", python=sys.executable, options=("-c", CONSTRAINTS)):
        self.bin, self.folder = folder / "venv" / "bin", folder / "work"
        self.folder.mkdir()
        inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
        self.variables = {**inherited, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}
        run([python, "-m", "venv", folder / "venv"])
        what = f"{package}[{extra}]" if extra else package
        self("python", "-m", "pip", "install", "--quiet", *options, what)

    def __call__(self, program, *arguments, code=0):
        """What a program of the environment writes, and complains of."""
        result = subprocess.run(
            [self.bin / program, *arguments], cwd=self.folder, env=self.variables, capture_output=True, text=True
        )
        assert result.returncode == code, f"{program} {arguments}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
        return result.stdout, result.stderr

    def runs_readme(self, blocks):
        for block in blocks:
            _, complaints = self("python", "-c", block)
            assert "warning" not in complaints.lower(), complaints
