"""Clone an agent: record what it does, and pretrain another algorithm on that, before it learns on its own.

Train the agent from the shell, or let the script train one:

    jaxenvs train ppo CartPole-v1 --seed 0 --out runs/cartpole
    python examples/clone_an_agent.py runs/cartpole/model.zip
"""

import sys

from jaxenvs.sb3 import DQN, PPO, evaluate, make_vec_env, pretrain, record_episodes

if __name__ == "__main__":
    if len(sys.argv) > 1:
        expert = PPO.load(sys.argv[1], device="cpu")
    else:
        expert = PPO("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=0), n_steps=128, device="cpu", seed=0)
        expert.learn(60_000)
    episodes = record_episodes(expert, make_vec_env("CartPole-v1", 8, seed=1), 30)

    clone = DQN("MlpPolicy", make_vec_env("CartPole-v1", 4, seed=0), learning_starts=1000, device="cpu", seed=0)
    history = pretrain(clone, episodes, n_epochs=30, patience=5)
    print(f"cloned {len(episodes['actions'])} actions, held-out loss {history['held_out_loss'].min():.3f}")
    for name, model in (("agent", expert), ("clone", clone)):
        print(f"{name}: return {evaluate(model, 'CartPole-v1', 100).returns.mean():.1f}")

    clone.learn(4_000)  # continues from there
