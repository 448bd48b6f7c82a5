"""What `gymnasium.make` and `gymnasium.make_vec` make of an id: `jaxenvs.registry` tells Gymnasium these names."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AutoresetMode

from jaxenvs import registry
from jaxenvs.gym.env import GymnasiumEnv
from jaxenvs.gym.vector_env import GymnasiumVectorEnv
from jaxenvs.vector import VectorEnv


class RegisteredEnv(GymnasiumEnv):
    """The environment of an id, as `gymnasium.make` wants it: the time limit is left to Gymnasium's wrapper.

    The limit of an environment that computes its own, as BitFlipping does, is not known to Gymnasium.
    """

    def __init__(self, env_id: str, render_mode: str | None = None, **parameters: Any) -> None:
        limit = None if registry.spec(env_id).max_episode_steps is None else -1
        super().__init__(registry.make(env_id, max_episode_steps=limit, **parameters), render_mode)


class RegisteredVectorEnv(GymnasiumVectorEnv):
    """The environments of an id, as `gymnasium.make_vec` wants them: it passes the time limit, if there is one."""

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **parameters: Any,
    ) -> None:
        env = registry.make(env_id, max_episode_steps=max_episode_steps, **parameters)
        if autoreset_mode in [mode.value for mode in AutoresetMode]:
            autoreset_mode = AutoresetMode(autoreset_mode)
        super().__init__(VectorEnv(env, num_envs, autoreset_mode), render_mode)  # type: ignore[arg-type]
