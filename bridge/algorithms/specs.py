"""Table of the algorithms: one row for each, with all that the package, the command and the tests know about it by
name.

The rows are in one table rather than in the files of the algorithms, because a file that needs sb3-contrib cannot be
imported without it, and its row must be known all the same.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys

from stable_baselines3.common.base_class import BaseAlgorithm

from jaxenvs import learn

SB3, CONTRIB = "stable_baselines3", "sb3_contrib"


@dataclasses.dataclass(frozen=True)
class AlgorithmSpec:
    """Row of the table: what is known about an algorithm before its class is imported.

    Attributes:
      name: the name of its class, in `bridge` and in PyTorch.
      command: its name in `jaxenvs train`.
      settings: the class of jaxenvs.learn with its update.
      library: the package that the class needs. sb3-contrib is imported when the class is first used.
      file: the name of its file in this folder; if empty, `command`.
      stock: the module that has the class in PyTorch; None: `library`.
      actions: the only kind of action space that it supports, "Box" or "Discrete". None: it supports all kinds.
      policy_kind: what the names of its policies have before "Policy", such as "Lstm" in MlpLstmPolicy.
    """

    name: str
    command: str
    settings: type[learn.Settings]
    library: str = SB3
    actions: str | None = None
    policy_kind: str = ""
    file: str = ""
    stock: str | None = None

    @property
    def module(self) -> str:
        """The module that has its class."""
        return f"bridge.algorithms.{self.file or self.command}"

    @property
    def is_off_policy(self) -> bool:
        """True if the algorithm learns from a replay buffer."""
        return issubclass(self.settings, learn.OffPolicySettings)

    @property
    def is_installed(self) -> bool:
        """True if the library is installed."""
        return importlib.util.find_spec(self.library) is not None

    @property
    def cls(self) -> type[BaseAlgorithm]:
        """The algorithm's class in `bridge`, imported now.

        Raises:
          ImportError: its library is not installed.
        """
        try:
            importlib.import_module(self.library)
        except ImportError as error:
            needs = f"jaxenvs.sb3.{self.name} needs sb3-contrib, but {error.name} is not installed"
            raise ImportError(f'{needs}: pip install "jaxenvs[contrib]".') from error
        found: type[BaseAlgorithm] = getattr(importlib.import_module(self.module), self.name)
        return found

    @property
    def imported(self) -> tuple[type[BaseAlgorithm], ...]:
        """The algorithm's class and the class in PyTorch, as far as their modules have been imported."""
        modules = (sys.modules.get(self.module), sys.modules.get(self.stock or self.library))
        return tuple(getattr(module, self.name) for module in modules if hasattr(module, self.name))


_ROWS = (
    AlgorithmSpec("A2C", "a2c", learn.A2C),
    AlgorithmSpec("PPO", "ppo", learn.PPO),
    AlgorithmSpec("MaskablePPO", "maskable_ppo", learn.MaskablePPO, CONTRIB),
    AlgorithmSpec("RecurrentPPO", "recurrent_ppo", learn.RecurrentPPO, CONTRIB, policy_kind="Lstm"),
    AlgorithmSpec(
        "MaskableRecurrentPPO",
        "maskable_recurrent_ppo",
        learn.MaskableRecurrentPPO,
        CONTRIB,
        policy_kind="Lstm",
        stock="bridge.stock.pytorch_maskable_recurrent_ppo",
    ),
    AlgorithmSpec("PQN", "pqn", learn.PQN, actions="Discrete", stock="bridge.stock.pytorch_pqn"),
    AlgorithmSpec("CrossQ", "crossq", learn.CrossQ, CONTRIB, "Box"),
    AlgorithmSpec("DDPG", "ddpg", learn.DDPG, SB3, "Box", file="td3"),
    AlgorithmSpec("DQN", "dqn", learn.DQN, SB3, "Discrete"),
    AlgorithmSpec("QRDQN", "qrdqn", learn.QRDQN, CONTRIB, "Discrete"),
    AlgorithmSpec("SAC", "sac", learn.SAC, SB3, "Box"),
    AlgorithmSpec("TD3", "td3", learn.TD3, SB3, "Box"),
    AlgorithmSpec("TQC", "tqc", learn.TQC, CONTRIB, "Box"),
)
# The rows by the names of the classes, and by the names in the command.
SPECS = {spec.name: spec for spec in _ROWS}
ALGORITHMS = {spec.command: spec for spec in _ROWS}
