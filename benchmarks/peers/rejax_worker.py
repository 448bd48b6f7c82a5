"""rejax's PPO, in the environment of rejax-requirements.txt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rejax import PPO

from benchmarks.peers.worker import Setting, Side, compiled_training, serve


def prepare(setting: Setting, iterations: int, compiler_options: Mapping[str, str]) -> Side:
    """Return the whole training as one compiled function, from state to state."""
    steps = iterations * setting.rollout
    algorithm = PPO.create(
        env="CartPole-v1",
        num_envs=setting.n_envs,
        num_steps=setting.n_steps,
        num_minibatches=setting.rollout // setting.batch_size,
        num_epochs=setting.n_epochs,
        learning_rate=setting.learning_rate,
        gamma=setting.gamma,
        gae_lambda=setting.gae_lambda,
        clip_eps=setting.clip_range,
        ent_coef=setting.ent_coef,
        vf_coef=setting.vf_coef,
        max_grad_norm=setting.max_grad_norm,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        total_timesteps=steps,
        # It would evaluate 128 episodes every eval_freq steps: once, at the end, and then nothing.
        eval_freq=steps,
        skip_initial_evaluation=True,
    ).replace(eval_callback=lambda *_: ())

    def train(state: Any) -> tuple[Any, Any]:
        return algorithm.train(train_state=state)

    return compiled_training(algorithm.init_state, train, steps, compiler_options)


if __name__ == "__main__":
    serve(prepare)
