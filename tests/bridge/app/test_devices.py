"""`jaxenvs train --devices` and `--distributed`: one training divided over devices, of one process and of several."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from stable_baselines3 import PPO

from tests.bridge.app.short_runs import error_of

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--devices", "3", "--num-envs", "6"],
            "num_devices must be at most 1, the number of devices that JAX has here, got 3",
        ),
        (["--devices", "0"], "--devices must be a positive int, got 0"),
        (["--devices", "1", "--seeds", "2"], "cannot be combined with --seeds"),
        (["--devices", "1", "--distributed"], "--distributed uses all devices: leave out --devices 1"),
    ],
    ids=str,
)
def test_what_cannot_be_divided_is_refused(arguments, message, tmp_path, capsys):
    jax.devices()  # before JAX runs, the command would let it have more of them
    assert message in error_of(capsys, "train", "ppo", "CartPole-v1", *arguments, "--out", str(tmp_path / "run"))


@pytest.mark.thorough
def test_a_run_that_was_begun_without_devices_goes_on_without(run, capsys):
    assert "was started without --devices" in error_of(capsys, "train", "--resume", str(run), "--devices", "1")


class Processes:
    """Two processes of one training on this machine, each with one device."""

    def __init__(self, folder, *arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.errors = [folder / f"errors-{number}.txt" for number in range(2)]
        together = ["--distributed", "--coordinator", f"127.0.0.1:{port}", "--num-processes", "2", "--process-id"]
        self.processes = [
            subprocess.Popen(
                [*COMMAND, *arguments, *together, str(number)],
                stdout=subprocess.PIPE,
                stderr=self.errors[number].open("wb"),
                env=ENVIRONMENT,
                cwd=folder,
            )
            for number in range(2)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def wait_for(self, path):
        while not path.exists():
            assert all(process.poll() is None for process in self.processes), self.errors[0].read_text()
            time.sleep(0.2)


COMMAND = [sys.executable, "-m", "jaxenvs.cli", "train"]
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
LONG = ["ppo", "CartPole-v1", "--num-envs", "8", "--total-timesteps", "1000000"]
LONG += ["--hyperparameters", "n_steps=64", "batch_size=512", "n_epochs=1"]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "lost", "seconds"), [(signal.SIGKILL, 1, 5), (signal.SIGKILL, 0, 5), (signal.SIGSTOP, 1, 30)]
)
def test_a_lost_process_ends_the_others_and_a_resume_goes_on(number, lost, seconds, tmp_path):
    out = tmp_path / "run"
    with Processes(tmp_path, *LONG, "--out", str(out)) as both:
        both.wait_for(out / "checkpoint.npz")
        both.processes[lost].send_signal(number)
        start = time.monotonic()
        status = both.processes[1 - lost].wait(60)
        assert time.monotonic() - start < seconds
        assert status != 0
    assert both.errors[1 - lost].read_text()
    with np.load(out / "checkpoint.npz") as file:
        steps = int(file["metrics/timesteps"][0, -1])
    assert 0 < steps < 1_000_000
    if number == signal.SIGKILL and lost == 1:
        done = subprocess.run([*COMMAND, "--resume", str(out), "--devices", "1"], capture_output=True, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        assert f"from {steps} on" in done.stdout.decode()
        assert PPO.load(out / "model.zip").num_timesteps >= 1_000_000
