"""Train PPO on LunarLander-v3 with either import, and print when each episode ended and its return, as JSON."""

import argparse
import json
import tempfile
import time
from pathlib import Path

START = time.time()  # before PyTorch and JAX are imported, which counts

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--package", choices=["jaxenvs.sb3", "stable_baselines3"], required=True)
parser.add_argument("--backend", help="of jaxenvs.sb3.make_vec_env")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--total-timesteps", type=int, required=True)
options = parser.parse_args()

if options.package == "jaxenvs.sb3":
    from jaxenvs.sb3 import PPO, make_vec_env
else:
    from stable_baselines3 import PPO  # type: ignore[assignment]
    from stable_baselines3.common.env_util import make_vec_env  # type: ignore[assignment]

with tempfile.TemporaryDirectory() as folder:
    backend = {"backend": options.backend} if options.backend else {}
    env = make_vec_env("LunarLander-v3", n_envs=16, seed=options.seed, monitor_dir=folder, **backend)
    # RL Baselines3 Zoo's hyperparameters for this environment.
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=1024,
        batch_size=64,
        gae_lambda=0.98,
        gamma=0.999,
        n_epochs=4,
        ent_coef=0.01,
        seed=options.seed,
        device="cpu",
    )
    model.learn(options.total_timesteps)
    seconds, cpu_seconds = time.time() - START, time.process_time()
    env.close()
    from stable_baselines3.common.monitor import load_results

    headers = [path.read_text().partition("\n")[0] for path in Path(folder).glob("*monitor.csv")]
    created = min(json.loads(header.removeprefix("#"))["t_start"] for header in headers)
    episodes = load_results(folder)
    ends = (episodes["t"] + created - START).tolist()
    print(json.dumps({"seconds": seconds, "CPU_seconds": cpu_seconds, "ends": ends, "returns": episodes["r"].tolist()}))
