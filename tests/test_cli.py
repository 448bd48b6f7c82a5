"""The `jaxenvs` command where it needs no PyTorch; what trains is tested in tests/bridge/app."""

import subprocess
import sys
from pathlib import Path

import jaxenvs
from jaxenvs import cli
from tests.bridge.app.short_runs import error_of

ROOT = Path(__file__).parent.parent


def test_list_shows_every_environment(capsys):
    cli.main(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == jaxenvs.registered()
    pendulum = next(line for line in lines if line.startswith("Pendulum-v1"))
    assert "Box(-2.0, 2.0, (1,), float32)" in pendulum


def test_a_reader_who_has_enough_ends_the_command_quietly():
    command = [sys.executable, "-c", "from jaxenvs.cli import main; main()", "list"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    process.stdout.close()  # as `head` does
    assert process.stderr.read() == b""
    assert process.wait() == 141


def test_list_shows_the_ids_of_another_library(capsys, monkeypatch):
    monkeypatch.setattr(jaxenvs.foreign, "ids", lambda library: [f"{library}/one", f"{library}/two"])
    cli.main(["list", "gymnax"])
    assert capsys.readouterr().out == "gymnax/one\ngymnax/two\n"


def test_list_says_what_to_install_for_a_library(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jumanji", None)
    assert 'pip install "jaxenvs[jumanji]"' in error_of(capsys, "list", "jumanji")


def test_tune_says_what_to_install_without_optuna(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    message = error_of(capsys, "tune", "ppo", "CartPole-v1")
    assert "jaxenvs tune needs Optuna" in message
    assert 'pip install "jaxenvs[tune]"' in message


def test_bench_runs_the_scripts_named(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(cli, "CHECKOUT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "common.py").write_text("print('no benchmark')")
    for name in ("one", "two"):
        (tmp_path / "benchmarks" / f"{name}.py").write_text(f"\ndef main():\n    print('{name}')\n\nmain()")
    cli.main(["bench", "two"])
    assert capfd.readouterr().out == "two\n"
    cli.main(["bench"])
    assert capfd.readouterr().out == "one\ntwo\n"


def test_bench_outside_a_checkout_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "CHECKOUT", tmp_path)
    assert "source checkout" in error_of(capsys, "bench")


def test_as_a_module_it_ends_in_one_line_too(tmp_path):
    command = [sys.executable, "-m", "jaxenvs.cli", "evaluate", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith("jaxenvs: error: Cannot read")


def test_version_is_printed(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out.startswith("jaxenvs ")


def test_without_torch_what_does_not_need_it_works():
    code = """
import sys

class Without:  # as if they were not installed
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, *arguments):
        missing = name.split(".")[0] in ("torch", "stable_baselines3")
        return None if missing else self.finder.find_spec(name, *arguments)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path = [Without(finder) for finder in sys.meta_path]
from jaxenvs.cli import main
main(["--version"])
main(["list"])
for command in (["train", "ppo", "CartPole-v1"], ["evaluate", "run"], ["record", "run"]):
    try:
        main(command)
    except SystemExit as end:
        print(end.code, file=sys.stderr)
main(["--help"])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Pendulum-v1" in result.stdout
    assert "evaluate" in result.stdout
    lines = result.stderr.splitlines()
    assert lines[1::2] == ["2", "2", "2"], result.stderr
    for line, command in zip(lines[::2], ["train", "evaluate", "record"]):
        assert line.startswith(f"jaxenvs: error: jaxenvs {command} needs PyTorch and Stable-Baselines3, and torch")
        assert line.endswith('pip install "jaxenvs[sb3]".')


def test_what_the_commands_of_bridge_do_is_said_in_the_same_words():
    from bridge.app.cli import COMMANDS

    assert {name: command.__doc__.partition("\n")[0] for name, command in COMMANDS.items()} == cli.OF_BRIDGE
