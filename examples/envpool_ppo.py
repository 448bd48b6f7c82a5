"""Train on EnvPool, whose environments step themselves in C++: its ids are those of backend="native".

EnvPool begins the next episode one step late, with an action that it ignores and a reward of 0. GymVecEnv, which
make_vec_env makes of it, begins it at once, so that no policy ever learns from such a step.
Run it: pip install "jaxenvs[envpool]", and python examples/envpool_ppo.py
"""

import importlib.util

import numpy as np

from bridge import PPO, make_vec_env


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
