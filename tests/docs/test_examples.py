"""Every script in examples/ runs to its end. New files are found by themselves."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import tiered

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.rglob("*.py"))
# What these do at length, others of them do, README.md's blocks and those of docs/, and tests of its parts.
AT_LENGTH = (
    *("custom_environment.py", "domain_randomization.py", "gradients_through_flight.py"),
    *("thousands_of_landers.py", "train_sb3.py", "wind_and_gravity.py"),
    *("cartpole.py", "offline_sequence_model.py", "own_gymnasium_env.py", "sweep.py", "tank.py", "train_compiled.py"),
)


def in_tiers(paths):
    return tiered(paths, *(path for path in paths if path.name not in AT_LENGTH))


@pytest.mark.slow
@pytest.mark.parametrize("script", in_tiers(SCRIPTS), ids=lambda path: path.stem)
def test_script_runs(script, tmp_path):
    if list(script.parent.glob("*.c")) and shutil.which("cc") is None:
        pytest.skip("there is no C compiler, cc")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout
