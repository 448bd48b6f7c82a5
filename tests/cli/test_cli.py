"""The `jaxenvs` command where it needs no PyTorch; what trains is tested in tests/bridge/app."""

import functools
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

import jaxenvs
from bridge.app import cli as of_bridge
from jaxenvs import cli
from jaxenvs.cli import machine_report
from jaxenvs.compilation.faults import (
    copies_in_loops,
    count_wrong_rows,
    count_wrong_shifts,
    count_wrong_slices,
    count_wrong_sums,
)
from tests.bridge.app.short_runs import error_of

ROOT = Path(__file__).parent.parent.parent


def test_list_shows_every_environment(capsys):
    cli.main(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == jaxenvs.registered()
    pendulum = next(line for line in lines if line.startswith("Pendulum-v1"))
    assert "Box(-2.0, 2.0, (1,), float32)" in pendulum


def command(*arguments):
    return [sys.executable, "-c", "from jaxenvs.cli import main; main()", *arguments]


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["list"], ["list", "--help"]], ids=" ".join)
def test_a_reader_who_has_enough_ends_the_command_quietly(arguments):
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    process.stdout.close()  # as `head` does
    assert process.stderr.read() == b""
    assert process.wait() == 141


def test_a_reader_of_errors_who_has_enough_does_too(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with pytest.raises(SystemExit) as ended:
            cli.main(["list", "no_such_module"])
    assert ended.value.code == 141


def test_closed_streams_are_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it after `jaxenvs --version >&-`
    cli.main(["--version"])


@pytest.mark.parametrize("name", [None, *of_bridge.COMMANDS, *cli.OWN])
def test_the_help_of_a_command_has_an_example_that_can_be_typed(name, capsys, monkeypatch):
    text = cli.DESCRIPTION if name is None else (cli.OWN | of_bridge.COMMANDS)[name].__doc__
    (example,) = re.findall(r"^ *(For example: jaxenvs .*)$", text, re.MULTILINE)
    with pytest.raises(SystemExit):
        cli.main([name, "--help"] if name else ["--help"])
    assert example in " ".join(capsys.readouterr().out.split())
    typed = []
    for commands in (cli.OWN, of_bridge.COMMANDS):
        for each, function in commands.items():
            stand_in = functools.wraps(function)(lambda *_, _name=each, **__: typed.append(_name))
            monkeypatch.setitem(commands, each, stand_in)
    cli.main(example.split()[3:])
    assert typed == [name or "train"]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.stem
)
def test_the_commands_of_a_page_can_be_typed(page, monkeypatch):
    lines = re.findall(r"^(?:srun )?jaxenvs ((?:train|evaluate|record) .*)$", page.read_text(), re.MULTILINE)
    typed = [line.partition("#")[0] for line in lines if not line.endswith("\\")]
    started = []
    for name, function in of_bridge.COMMANDS.items():
        stand_in = functools.wraps(function)(lambda *_, _name=name, **__: started.append(_name))
        monkeypatch.setitem(of_bridge.COMMANDS, name, stand_in)
    for line in typed:
        cli.main(shlex.split(line))
    assert started == [line.split()[0] for line in typed]


def test_list_shows_the_ids_of_another_library(capsys, monkeypatch):
    monkeypatch.setattr(jaxenvs.third_party, "ids", lambda library: [f"{library}/one", f"{library}/two"])
    cli.main(["list", "gymnax"])
    assert capsys.readouterr().out == "gymnax/one\ngymnax/two\n"


def test_list_says_what_to_install_for_a_library(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jumanji", None)
    assert 'pip install "jaxenvs[jumanji]"' in error_of(capsys, "list", "jumanji")


def test_list_says_what_can_be_listed_where_there_is_no_such_module(capsys):
    message = error_of(capsys, "list", "foo")
    assert "No module 'foo'" in message
    assert "Libraries whose environments can be listed: brax, craftax, gymnax, " in message
    assert message.rstrip().endswith("xminigrid, envpool.")
    assert "Did you mean gymnax?" in error_of(capsys, "list", "gymnas")


@pytest.mark.thorough
def test_as_a_module_it_ends_in_one_line_too(tmp_path):
    command = [sys.executable, "-m", "jaxenvs.cli", "evaluate", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith("jaxenvs: error: There is no run in")


def test_version_is_printed(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out.startswith("jaxenvs ")


@pytest.mark.thorough
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
main(["doctor"])
for command in (["train", "ppo", "CartPole-v1"], ["evaluate", "run"], ["record", "run"]):
    try:
        main(command)
    except SystemExit as end:
        print(end.code, file=sys.stderr)
for command in ["train", "ppo"], ["evaluate"], ["record"], ["zoo"], ["zoo", "train"], []:
    try:
        main([*command, "--help"])
    except SystemExit as end:
        assert not end.code, command
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Pendulum-v1" in result.stdout
    assert "jaxenvs.sb3 needs PyTorch and Stable-Baselines3" in result.stdout
    for command in ("train", "evaluate", "record", "zoo"):
        assert f"usage: jaxenvs {command}" in result.stdout
        assert f"jaxenvs {command} needs PyTorch and Stable-Baselines3" in result.stdout
    assert "• evaluate" in result.stdout
    lines = result.stderr.splitlines()
    assert lines[1::2] == ["2", "2", "2"], result.stderr
    for line, command in zip(lines[::2], ["train", "evaluate", "record"]):
        assert line.startswith(f"jaxenvs: error: jaxenvs {command} needs PyTorch and Stable-Baselines3, but torch")
        assert line.endswith('pip install "jaxenvs[sb3]".')


def test_help_fits_on_a_screen_and_breaks_no_line_in_the_middle(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert len(capsys.readouterr().out.strip().splitlines()) <= 20
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if "--num-envs N" in line)
    said = " ".join(line.strip("│ ") for line in lines[first + 1 : first + 4])
    assert said.startswith("The number of environments. If not given, the number tuned for the")
    assert "8 for on-policy and 1 for off-policy" in said  # the docstring has a line break in it


def test_what_the_commands_of_bridge_do_is_said_in_the_same_words():
    firsts = {name: command.__doc__.partition("\n")[0] for name, command in of_bridge.COMMANDS.items()}
    assert firsts == {name: said for name, said in cli.OF_BRIDGE.items() if name != "zoo"}


def test_doctor_lists_only_the_optional_packages_that_are_there(monkeypatch):
    monkeypatch.setattr(machine_report, "OPTIONAL", ("numpy", "no-such-package"))
    assert f"optional  numpy {np.__version__}\n" in machine_report.report()


def test_doctor_fits_on_a_screen_and_names_nobody(capsys):
    cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert f"jax {jax.__version__}," in text
    assert f"torch {torch.__version__.partition('+')[0]}" in text
    assert str(Path.home()) not in text
    assert platform.node() not in text
    said = " ".join(text.split())
    avoided = (count_wrong_rows, count_wrong_sums, copies_in_loops)
    assert ("jaxenvs's own functions compute correctly" in said) == any(has_fault() for has_fault in avoided)
    assert ("openxla/xla#49176" in said) == (count_wrong_shifts() > 0)
    assert ("openxla/xla#49121" in said) == (count_wrong_slices() > 0)
    assert "JAX reads it" in text
    rows = {line.split()[0]: re.split(r"  +", line)[1:] for line in lines}
    assert rows["PPO"] == ["all", "nothing", "acting, updates"]  # on a CPU
    assert rows["SAC"][0] == "all"
    assert rows["CrossQ"][1] == "-"
