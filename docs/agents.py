"""Draws docs/agents.gif: four agents of bridge.PPO, trained with the Zoo's hyper-parameters. python docs/agents.py"""

from pathlib import Path

import numpy as np
from PIL import Image
from stable_baselines3.common.vec_env import VecNormalize

from bridge import PPO, make_vec_env
from jaxenvs.app.hyperparameters import TUNED, to_schedule

ENV_IDS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1")
FRAMES, EVERY, FRAME_MS, SIZE, COLORS = 60, 3, 80, (210, 140), 48


def train(env_id: str) -> PPO:
    """An agent that has learnt the task."""
    settings = dict(TUNED["ppo"][env_id])
    num_envs, total = settings.pop("n_envs"), min(settings.pop("n_timesteps"), 300_000)
    env = make_vec_env(env_id, num_envs, seed=0)
    if settings.pop("normalize", False):
        env = VecNormalize(env, gamma=settings["gamma"])
    settings = {name: to_schedule(value) for name, value in settings.items()}
    return PPO("MlpPolicy", env, seed=0, **settings).learn(total)


def film(model: PPO, env_id: str) -> list[Image.Image]:
    """Every third step of an agent's episodes."""
    env, normalize, frames = make_vec_env(env_id, 1, seed=7), model.get_vec_normalize_env(), []
    observation = env.reset()
    for step in range(FRAMES * EVERY):
        if step % EVERY == 0:
            picture = Image.fromarray(env.get_images()[0])
            picture.thumbnail(SIZE, Image.Resampling.LANCZOS)
            frame = Image.new("RGB", SIZE, picture.getpixel((0, 0)))
            frame.paste(picture, tuple((whole - part) // 2 for whole, part in zip(SIZE, picture.size, strict=True)))
            frames.append(frame)
        seen = observation if normalize is None else normalize.normalize_obs(observation)
        observation, *_ = env.step(model.predict(seen, deterministic=True)[0])
    return frames


if __name__ == "__main__":
    films = [film(train(env_id), env_id) for env_id in ENV_IDS]
    frames = [Image.fromarray(np.concatenate([np.asarray(frame) for frame in row], axis=1)) for row in zip(*films)]
    palette = Image.fromarray(np.concatenate(frames[::10])).quantize(COLORS)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    path = Path(__file__).with_name("agents.gif")
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0, optimize=True)
    print(f"wrote {path.name}, {path.stat().st_size / 1000:.0f} kB")
