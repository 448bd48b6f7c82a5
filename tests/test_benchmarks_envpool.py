"""The benchmark of EnvPool's worlds: it runs, and without EnvPool it says so."""

import json
import sys

import pytest

from benchmarks import envpool


def test_without_envpool_it_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "envpool", None)
    envpool.main(["--quick"])
    assert "skipped: envpool is not installed (make bench installs it)" in capsys.readouterr().out


@pytest.mark.thorough
def test_quick_measures_seams(tmp_path):
    pytest.importorskip("envpool")
    envpool.main(["--quick", "--parts", "seams", "--only", "CartPole", "--output", str(tmp_path)])
    content = json.loads((tmp_path / "envpool.json").read_text())
    rows = content["tables"]["seams"]
    assert [row["side"] for row in rows] == ["EnvPool's own step", "VecEnv.step of GymVecEnv"]
    assert len(content["bars"]) == 1
