"""Train on EnvPool, whose environments step themselves in C++: `GymVecEnv` is all that Stable-Baselines3 needs.

EnvPool begins the next episode one step late, with an action that it ignores and a reward of 0. GymVecEnv resets the
lanes that ended at once, so that no policy ever learns from such a step.
Run it: pip install envpool, and python examples/envpool_ppo.py
"""

import numpy as np

from bridge import PPO, GymVecEnv

try:
    import envpool
except ImportError:
    raise SystemExit(print("EnvPool is not installed: pip install envpool.")) from None


def main() -> None:
    # EnvPool takes its seed here, and warns of one that comes later.
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=64, num_threads=2, seed=0)
    venv = GymVecEnv(pool)
    model = PPO("MlpPolicy", venv, n_steps=64, batch_size=512, n_epochs=10, learning_rate=1e-3)
    model.learn(100_000)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    print(f"The last {len(returns)} episodes lasted {np.mean(returns):.0f} of at most 500 steps on average.")
    venv.close()


if __name__ == "__main__":
    main()
