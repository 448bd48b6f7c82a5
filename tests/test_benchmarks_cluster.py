"""The benchmark of environments on a cluster: it runs, and without Ray it says so."""

import json
import sys

import pytest

from benchmarks import cluster


def test_without_ray_it_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    cluster.main(["--quick"])
    assert "skipped: ray is not installed (make bench installs it)" in capsys.readouterr().out


@pytest.mark.thorough
def test_quick_measures_steps_and_rollouts(tmp_path):
    pytest.importorskip("ray")
    cluster.main(["--quick", "--output", str(tmp_path)])
    content = json.loads((tmp_path / "cluster.json").read_text())
    assert [row["milliseconds"] for row in content["tables"]["stepping"]] == [1]
    [row] = content["tables"]["rollouts"]
    assert all(row[name] > 0 for name in ("ProcessVecEnv", "RayVecEnv", "RayVecEnv, whole rollouts"))
    assert len(content["bars"]) == 1
