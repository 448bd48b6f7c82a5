"""Trainings over two devices: of this process, or of two, of which this is one. What they gave, as JSON.

`python -m tests.learn.on_processes [HOST:PORT NUMBER]`
"""

import json
import sys

import jax

if __name__ == "__main__":
    if sys.argv[1:]:
        jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))  # before anything of JAX
    from tests.learn.on_devices import digest

    print(json.dumps([digest(name) for name in ("PPO", "DQN")]))
