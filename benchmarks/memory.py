"""Read the memory of this process, without imports that would take memory; and show what a training script's holds.

`python -m benchmarks.memory [stock|bridge] [ppo|sac]` trains in this process and prints a row for each phase. Run it
twice, with `JAXENVS_CACHE=FOLDER`, for the first and the second run of a script.
"""

from __future__ import annotations

import ctypes
import resource
import sys
import time
from pathlib import Path
from typing import Any


def resident_megabytes() -> float:
    """Return the current resident size, or its peak on systems that do not report the current one."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    return _highest_of_all()


def peak_megabytes() -> float:
    """Return the peak resident size since this process began."""
    # First, because what getrusage tells may be of the process that started this one: Linux keeps it over an exec.
    return _status().get("VmHWM", 0.0) or _highest_of_all()


def _status() -> dict[str, float]:
    """Return the sizes that Linux reports, in MB."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines if line.endswith(" kB")}


def _highest_of_all() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


class _Heap(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keepcost")
    )


class Phases:
    """Prints for each phase of a script its CPU seconds, how many functions it compiled, and the memory after it."""

    COLUMNS = ("CPU s", "compiled", "peak", "now", "files", "heap", "freed")

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self._seconds, self._compiled = 0.0, 0
        self._info = ctypes.CDLL(None).mallinfo2
        self._info.restype = _Heap
        print("".join(f"{column:>{width}}" for column, width in zip(("", *self.COLUMNS), (14, *[9] * 7))))

    def end(self, name: str) -> None:
        """Print the row of the phase that ends here: of memory the peak and what is resident, in MB; of that, what is
        mapped from files, what the heap has in use, and what it keeps after it was freed.
        """
        seconds, status, heap = time.process_time(), _status(), self._info()
        sizes = [status["VmHWM"], status["VmRSS"], status["RssFile"], heap.used / 1e6, heap.free / 1e6]
        counted = len(self.compiled) - self._compiled
        print(f"{name:14}{seconds - self._seconds:9.2f}{counted:9}" + "".join(f"{size:9.0f}" for size in sizes))
        self._seconds, self._compiled = seconds, len(self.compiled)

    def count_compiled(self) -> None:
        """Note the names of functions that JAX compiles, or reads from its cache, from now on."""
        from jax._src import compiler

        compile_or_read = compiler.compile_or_get_cached

        def noted(backend: Any, module: Any, *rest: Any, **options: Any) -> Any:
            self.compiled.append(str(module.operation.attributes["sym_name"]).strip('"').removeprefix("jit_"))
            return compile_or_read(backend, module, *rest, **options)

        vars(compiler)["compile_or_get_cached"] = noted


def main(side: str = "bridge", algorithm: str = "ppo") -> None:
    """Train PPO on CartPole with RL-Zoo's settings, or SAC on Pendulum with SB3's, and print a row for each phase."""
    phases = Phases()
    import torch

    torch.set_num_threads(1)
    phases.end("import torch")
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    phases.end("import SB3")
    library, make = stable_baselines3, make_vec_env
    if side == "bridge":
        import jax  # noqa: F401

        phases.end("import jax")
        import bridge

        library, make = bridge, bridge.make_vec_env
        phases.count_compiled()
    env_id, num_envs, num_steps = ("CartPole-v1", 8, 10_000) if algorithm == "ppo" else ("Pendulum-v1", 1, 600)
    env = make(env_id, num_envs, seed=0)
    settings = {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20}
    settings = settings | {"learning_rate": 0.001} if algorithm == "ppo" else {}
    model = getattr(library, algorithm.upper())("MlpPolicy", env, seed=0, device="cpu", **settings)
    phases.end("model")
    model.learn(num_steps)
    phases.end("learn")
    print("compiled:", *phases.compiled)


if __name__ == "__main__":
    main(*sys.argv[1:])
