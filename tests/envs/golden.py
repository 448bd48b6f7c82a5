"""Golden rollouts: what a seed gives, to notice when that changes. `python tests/envs/golden.py` rewrites them."""

from __future__ import annotations

import hashlib
import json
import platform as host
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np

import jaxenvs

FILE = Path(__file__).with_name("golden.json")
NUM_ENVS, NUM_STEPS = 4, 200
EARLY = 10  # steps after which another platform's rounding has not yet grown, in the most chaotic of them


def platform() -> dict[str, Any]:
    """What the bits of a rollout depend on."""
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    return {
        "machine": host.machine(),
        "instructions": sorted({"avx2", "fma", "avx512f"}.intersection(flags)),
        "backend": jax.default_backend(),
        "jaxlib": jaxlib.__version__,
    }


def rollout(id: str) -> tuple[np.ndarray, str]:
    """Return the observations of step `EARLY`, and the hash of everything that 200 random steps return."""
    venv = jaxenvs.make_vec(id, NUM_ENVS)

    def policy(key: jax.Array, observation: jax.Array) -> jax.Array:
        space: Any = venv.env.action_space
        if hasattr(space, "n"):
            return jax.random.randint(key, (NUM_ENVS,), 0, space.n)
        return jax.random.uniform(key, (NUM_ENVS, *space.shape), minval=space.low, maxval=space.high)

    _, trajectory = jax.jit(lambda key: jaxenvs.rollout(venv, policy, key, NUM_STEPS))(jax.random.key(0))
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(trajectory.timestep)]
    digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()
    early = [np.asarray(leaf[EARLY], float).reshape(NUM_ENVS, -1) for leaf in jax.tree.leaves(trajectory.observation)]
    return np.round(np.concatenate(early, axis=1), 4), digest


def load() -> Any:
    return json.loads(FILE.read_text())


def main() -> None:
    known: dict[str, Any] = {"platform": platform()}
    for id in jaxenvs.registered():
        if type(jaxenvs.make(id).unwrapped).__module__.startswith("jaxenvs.envs"):
            observation, digest = rollout(id)
            rounded = [[round(float(value), 4) for value in row] for row in observation]
            known[id] = {"sha256": digest, "observation": rounded}
    FILE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
