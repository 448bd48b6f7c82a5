"""CartPole of tensors: Gymnasium's native CartPole, with PyTorch's functions instead of NumPy's."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode

TAU, GRAVITY, FORCE, MASS, POLE_MASS, LENGTH = 0.02, 9.8, 10.0, 1.1, 0.1, 0.5


class TorchCartPole(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """CartPole whose `reset` and `step` take and return tensors, and that draws the same numbers as Gymnasium's.

    Args:
      mode: with SAME_STEP, infos have `final_obs`; otherwise `reset` reads `reset_mask`.
      with_infos: whether infos have the position of each cart, and how many steps there were.
    """

    def __init__(
        self,
        num_envs: int,
        mode: Any = AutoresetMode.SAME_STEP,
        max_episode_steps: int = 500,
        with_infos: bool = False,
        device: str = "cpu",
    ) -> None:
        spaces = CartPoleVectorEnv(1)
        self.num_envs, self.mode, self.limit, self.with_infos, self.device = (
            num_envs,
            mode,
            max_episode_steps,
            with_infos,
            device,
        )
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.single_observation_space
        self.single_action_space = spaces.single_action_space
        self.observation = torch.empty((num_envs, 4), device=device)  # the same memory in every step

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask")
        if mask is None:
            self.state = torch.empty((4, self.num_envs), dtype=torch.float64, device=self.device)
            self.count = torch.empty(self.num_envs, dtype=torch.int64, device=self.device)
            mask = torch.ones_like(self.count, dtype=torch.bool)
        self._begin(mask)
        return self._observe(), {}

    def step(self, actions: Any) -> Any:
        assert isinstance(actions, torch.Tensor)
        assert (actions.dtype, actions.device.type) == (torch.int64, self.device)
        _, x_dot, theta, theta_dot = self.state
        force = torch.where(actions == 1, FORCE, -FORCE).double()
        cosine, sine = torch.cos(theta), torch.sin(theta)
        temporary = (force + POLE_MASS * LENGTH * torch.square(theta_dot) * sine) / MASS
        theta_acc = (GRAVITY * sine - cosine * temporary) / (
            LENGTH * (4.0 / 3.0 - POLE_MASS * torch.square(cosine) / MASS)
        )
        x_acc = temporary - POLE_MASS * LENGTH * theta_acc * cosine / MASS
        change = torch.stack([x_dot, x_acc, theta_dot, theta_acc])
        self.state = self.state + TAU * change
        self.count += 1
        limits = 2.4, 12 * 2 * torch.pi / 360
        terminated = (self.state[0].abs() > limits[0]) | (self.state[2].abs() > limits[1])
        truncated = self.count >= self.limit
        info: dict[str, Any] = (
            {"x": self.state[0], "scene": {"count": self.count}, "version": 1} if self.with_infos else {}
        )
        if self.mode is AutoresetMode.SAME_STEP:
            ended = terminated | truncated
            final_info = {"x": self.state[0].clone()} if self.with_infos else {}
            info |= {"final_obs": self._observe().clone(), "final_info": final_info}
            self._begin(ended)
        actions.zero_()  # they are the environment's
        return self._observe(), torch.ones(self.num_envs, device=self.device), terminated, truncated, info

    def _begin(self, mask: torch.Tensor) -> None:
        drawn = self.np_random.uniform(-0.05, 0.05, (4, int(mask.sum())))
        self.state[:, mask] = torch.from_numpy(drawn).to(self.device)
        self.count[mask] = 0

    def _observe(self) -> torch.Tensor:
        self.observation.copy_(self.state.T)
        return self.observation


class InArrays(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """An environment of tensors behind NumPy arrays, as one would write it by hand."""

    def __init__(self, env: TorchCartPole) -> None:
        self.env, self.num_envs, self.metadata = env, env.num_envs, env.metadata
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation.cpu().numpy(), info

    def step(self, actions: Any) -> Any:
        *step, info = self.env.step(torch.as_tensor(np.array(actions), device=self.env.device))
        info = {name: value.cpu().numpy() if name == "final_obs" else value for name, value in info.items()}
        return *(part.cpu().numpy() for part in step), info
