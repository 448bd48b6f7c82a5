"""Train PPO on a CartPole in C, which steps on several threads without the GIL.

`CCartPole` has all that `jaxenvs.sb3.NativeVecEnv` needs. It inherits from nothing.
Run it, with a C compiler in the path: python examples/native_c/cartpole.py
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path

import numpy as np
from gymnasium import spaces

from jaxenvs.sb3 import PPO, Buffers, NativeVecEnv

SOURCE = Path(__file__).with_name("cartpole.c")
ARRAYS = ("observation", "reward", "terminated", "truncated", "final_observation")  # as in the C structure


class _CBuffers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("actions", *ARRAYS)]


def build(folder: str | Path) -> ctypes.CDLL:
    """Compile cartpole.c into a folder, and load it."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise RuntimeError("cartpole.c needs a C compiler, and there is no cc in the path.")
    library = Path(folder) / "cartpole.so"
    # A division may become a multiplication with the inverse, and errno is not set, so loops become SIMD.
    # -ffast-math is not used: a library linked with it makes the whole process round subnormal numbers to 0.
    fast = ["-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-freciprocal-math", "-fassociative-math"]
    options = ["-O3", "-march=native", *fast, "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *options, SOURCE, "-o", library, "-lm"], check=True)
    loaded = ctypes.CDLL(str(library))  # a CDLL releases the GIL while a function runs
    pointer = ctypes.c_void_p
    loaded.cartpole_new.restype, loaded.cartpole_new.argtypes = pointer, (ctypes.c_int, ctypes.c_int)
    loaded.cartpole_reset.restype, loaded.cartpole_reset.argtypes = None, (pointer, pointer, pointer)
    for name in ("step", "send"):
        function = getattr(loaded, f"cartpole_{name}")
        function.restype, function.argtypes = None, (pointer, ctypes.POINTER(_CBuffers))
    for name in ("recv", "close"):
        function = getattr(loaded, f"cartpole_{name}")
        function.restype, function.argtypes = None, (pointer,)
    return loaded


class CCartPole:
    """NativeVectorEnv that calls the library."""

    def __init__(self, library: ctypes.CDLL, num_envs: int, num_threads: int = 0) -> None:
        """
        Args:
          num_threads: 0 uses the calling thread, which is fastest for a thousand environments of such a small task.
        """
        high = np.array([4.8, np.inf, 24 * 2 * np.pi / 360, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high)
        self.action_space = spaces.Discrete(2)
        self.num_envs = num_envs
        self._library = library
        self._pool = library.cartpole_new(num_envs, num_threads)
        if not self._pool:
            raise MemoryError(f"There is no memory for {num_envs} environments, or no {num_threads} threads.")
        self.close = weakref.finalize(self, library.cartpole_close, self._pool)
        # The same few buffers are passed again and again, and getting an address from NumPy takes time.
        self._addresses: weakref.WeakKeyDictionary[Buffers, _CBuffers] = weakref.WeakKeyDictionary()
        if num_threads:
            self.send = self._send

    def reset_into(self, buffers: Buffers, seeds: np.ndarray | None) -> None:
        self._library.cartpole_reset(
            self._pool, None if seeds is None else seeds.ctypes.data, buffers.observation.ctypes.data
        )

    def step_into(self, actions: np.ndarray, buffers: Buffers) -> None:
        self._library.cartpole_step(self._pool, self._pointers(actions, buffers))

    def _send(self, actions: np.ndarray, buffers: Buffers) -> None:
        self._library.cartpole_send(self._pool, self._pointers(actions, buffers))

    def recv(self) -> None:
        self._library.cartpole_recv(self._pool)

    def _pointers(self, actions: np.ndarray, buffers: Buffers) -> _CBuffers:
        pointers = self._addresses.get(buffers)
        if pointers is None:
            pointers = _CBuffers(0, *(getattr(buffers, name).ctypes.data for name in ARRAYS))
            self._addresses[buffers] = pointers
        pointers.actions = actions.ctypes.data
        return pointers


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv = NativeVecEnv(CCartPole(build(folder), num_envs=64, num_threads=2))
        model = PPO("MlpPolicy", venv, n_steps=64, batch_size=512, n_epochs=10, learning_rate=1e-3, seed=0)
        model.learn(100_000)
        returns = [episode["r"] for episode in model.ep_info_buffer]
        print(f"The last {len(returns)} episodes lasted {np.mean(returns):.0f} of at most 500 steps on average.")
        venv.close()


if __name__ == "__main__":
    main()
