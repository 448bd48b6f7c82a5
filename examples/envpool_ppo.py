"""Train on EnvPool, which steps its environments in C++: pass one of its ids and backend="native".

EnvPool begins the next episode one step late: it ignores the action of this step, and its reward is 0. make_vec_env
wraps EnvPool in a GymVecEnv, which begins the episode at once, so that a policy never learns from such a step.
Run it: pip install "jaxenvs[envpool]", then python examples/envpool_ppo.py
"""

import importlib.util

import numpy as np

from jaxenvs.sb3 import PPO, make_vec_env


def main() -> None:
    if importlib.util.find_spec("envpool") is None:
        print('EnvPool is not installed: pip install "jaxenvs[envpool]".')
        return
    venv = make_vec_env("CartPole-v1", n_envs=64, seed=0, env_kwargs={"num_threads": 2}, backend="native")
    model = PPO("MlpPolicy", venv, n_steps=64, batch_size=512, n_epochs=10, learning_rate=1e-3)
    model.learn(100_000)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    print(f"The last {len(returns)} episodes lasted {np.mean(returns):.0f} of at most 500 steps on average.")
    venv.close()


if __name__ == "__main__":
    main()
