"""State of a model's training: its plan, and whether code may have run that could have changed what the plan was made
for.

Weights, moments, buffers and statistics exist once, where SB3 has them, so that user code finds them. What compiled
functions take for granted besides (networks, optimizers, methods, settings) is in the plan. Callbacks, environments,
loggers, schedules and noises of users may change any of it: after they have run, the plan is compared before the next
compiled call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from bridge.engine.acting import forget_graph
from bridge.engine.callbacks.known import looks, needs_rollouts
from bridge.engine.on_policy.device_arrays import DeviceArrays
from bridge.engine.plan import Plan, make_plan
from bridge.engine.runtime import keep_freed_memory
from bridge.engine.user_code.overrides import inner_environments, run_no_user_code
from bridge.engine.user_code.signals import has_handlers
from bridge.sb3 import Algorithm

log = logging.getLogger("jaxenvs.sb3")


class Session:
    """State of a model's training.

    Attributes:
      plan: the last plan that was made; None before the first.
      is_known: whether the plan is the model's, as no other code has run since it was made or compared.
      device_arrays: what is not in SB3's rollout buffer, because only the next update reads it; None for nothing.
    """

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.is_known = False
        self.device_arrays: DeviceArrays | None = None
        # Whether code that is not known runs between the steps of a training of ours: an environment of this process, a
        # callback that looks.
        self.runs_user_code = True
        self._is_training = False

    def forget(self) -> None:
        """Note that code has run which may have changed anything."""
        self.is_known = False

    @contextmanager
    def training(self, callback: BaseCallback, env: VecEnv | None) -> Iterator[None]:
        """Run our own training loop. Where it calls code that is not known, it says so with `forget`."""
        was = self.runs_user_code, self._is_training
        self.runs_user_code = looks(callback) or has_handlers() or not run_no_user_code(env)
        self._is_training = True
        self.forget()
        try:
            yield
        finally:
            self.runs_user_code, self._is_training = was
            self.forget()
            self.write_back()

    def keep(self, arrays: DeviceArrays, callback: BaseCallback) -> None:
        """Leave a rollout on the device for the next update, unless other code may see SB3's buffer before."""
        plan = self.plan
        is_ours = self._is_training and plan is not None and plan.learner is not None and not plan.user_code
        if is_ours and not needs_rollouts(callback) and not has_handlers():
            self.device_arrays = arrays

    def write_back(self) -> None:
        """Complete SB3's rollout buffer."""
        arrays, self.device_arrays = self.device_arrays, None
        if arrays is not None:
            arrays.write_back()

    @contextmanager
    def sb3s_loop(self) -> Iterator[None]:
        """Run SB3's own loop, in which code that is not known may run at any time."""
        was, self._is_training = self._is_training, False
        self.forget()
        self.write_back()
        try:
            yield
        finally:
            self._is_training = was
            self.forget()

    @contextmanager
    def sb3s_train(self, algorithm: Algorithm) -> Iterator[None]:
        """Run SB3's `train`."""
        if algorithm.engine == "auto" and algorithm.device.type == "cpu":
            keep_freed_memory()
        with self.sb3s_loop():  # the policy may be the user's
            yield

    def current_plan(self, algorithm: Algorithm, env: VecEnv | None) -> Plan:
        """Return the plan. It is made anew if something that it depends on has changed."""
        if self.is_known and self.plan is not None:
            if (actor := self.plan.actor) is not None and not actor.is_shared:
                actor.refresh()  # an update may have changed the weights
            return self.plan
        *_, inner = inner_environments(env)
        env = None if inner is None else env
        before = self.plan
        if self.plan is None or not self.plan.is_current(algorithm, env):
            self.plan = make_plan(algorithm, env)
        plan = self.plan
        if plan.actor is not None:
            plan.actor.refresh()
            forget_graph(algorithm.policy)
        if plan is not before and (before is None or str(plan) != str(before)):
            log.log(logging.WARNING if plan.reasons else logging.INFO, "%s", plan)
        self.is_known = self._is_training and not plan.user_code and not has_handlers()
        return plan
