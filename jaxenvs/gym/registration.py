"""Classes that `gymnasium.make` and `gymnasium.make_vec` create for an id; `jaxenvs.registry` registers their names."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from jaxenvs import registry
from jaxenvs.gym.env import GymnasiumEnv
from jaxenvs.gym.vector_env import GymnasiumVectorEnv
from jaxenvs.vector import VectorEnv


class RegisteredEnv(GymnasiumEnv):
    """Environment of an id for `gymnasium.make`, whose wrapper counts the steps up to the time limit.

    Gymnasium does not know the limit of an environment that computes its own limit, as BitFlipping does.
    """

    def __init__(self, env_id: str, render_mode: str | None = None, **parameters: object) -> None:
        limit = None if registry.spec(env_id).max_episode_steps is None else -1
        super().__init__(registry.make(env_id, max_episode_steps=limit, **parameters), render_mode)


class RegisteredVectorEnv(GymnasiumVectorEnv):
    """Environments of an id for `gymnasium.make_vec`, which passes the time limit, if there is one."""

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **parameters: object,
    ) -> None:
        env = registry.make(env_id, max_episode_steps=max_episode_steps, **parameters)
        if autoreset_mode in [mode.value for mode in AutoresetMode]:
            autoreset_mode = AutoresetMode(autoreset_mode)
        super().__init__(VectorEnv(env, num_envs, autoreset_mode), render_mode)  # type: ignore[arg-type]
