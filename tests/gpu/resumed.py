"""Train bridge.PPO, with a checkpoint in the middle; `test_gpu.py` runs this twice. Prints a hash of the weights.

python resumed.py CHECKPOINT begin|resume
"""

import hashlib
import json
import sys

import torch

from bridge import PPO, load_checkpoint, make_vec_env, save_checkpoint

HALF = 4 * 16 * 32

if __name__ == "__main__":
    checkpoint, do = sys.argv[1:]
    env = make_vec_env("Pendulum-v1", 16, seed=0)
    if do == "begin":
        model = PPO("MlpPolicy", env, engine="xla", n_steps=32, batch_size=128, n_epochs=2, seed=0)
        model.learn(HALF)
        save_checkpoint(model, checkpoint)
    else:
        model = load_checkpoint(PPO, checkpoint, env)
    model.learn(HALF, reset_num_timesteps=False)
    weights = torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach().cpu().numpy()
    print(json.dumps({"steps": model.num_timesteps, "weights": hashlib.sha256(weights.tobytes()).hexdigest()}))
