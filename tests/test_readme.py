"""The Python in README.md runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_a_code_block_runs(index, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", BLOCKS[index]], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    if "evaluate(" in BLOCKS[index]:
        mean = float(result.stdout.split("±")[0].split()[-1])
        assert mean >= 475, result.stdout


def test_there_are_blocks_for_each_kind_of_reader():
    assert len(BLOCKS) == 4
