"""Whether a process that goes on and on stays as it is: learn, save, load, evaluate, set_attr and more, in turn.

    python -m benchmarks.soak [--minutes 10] [--quick]

Resident size and the number of compilations have to level off.
"""

from __future__ import annotations

import dataclasses
import gc
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import bridge
import jaxenvs
from benchmarks import common
from benchmarks.memory import resident_megabytes
from benchmarks.peers.jax_images import Images

N_ENVS, N_EPISODES, ITERATIONS = 4, 8, 4
A2C_SETTINGS: dict[str, Any] = {"n_steps": 16, "seed": 0, "device": "cpu"}
PPO_SETTINGS: dict[str, Any] = {**A2C_SETTINGS, "batch_size": 32, "n_epochs": 2}
IMAGES_EVERY = 10  # turns
READ_EVERY_SECONDS, QUICK_READ_EVERY_SECONDS = 20.0, 1.0
GROWTH = 1.05  # at most, of resident size, from the middle to the end

COMPILATION = "/jax/core/compile/backend_compile_duration"

NOTES = [
    f"in turn, with each model: {ITERATIONS} iterations of learn; pickling, of the model and of its environments; "
    f"save and load; evaluate, {N_EPISODES} episodes; set_attr, of all environments and of one; check_env",
    f"models: PPO and A2C with SB3's MlpPolicy on CartPole-v1 in VecNormalize, and once in {IMAGES_EVERY} turns PPO "
    "with a CnnPolicy on (36, 36, 1)",
    "compilations: of programs, or readings of them from JAX's persistent cache, since the start; late: in the last "
    "third of the time",
]


class Trainee:
    """A model that goes through the activities; each is a method that takes the number of the turn."""

    def __init__(self, name: str, model: Any, env: jaxenvs.Environment[Any], parameter: str | None) -> None:
        """
        Args:
          env: that of the model's lanes, for `check_env`.
          parameter: one of its numbers, for `set_attr`.
        """
        self.name, self.model, self.env, self.parameter = name, model, env, parameter

    def learn(self, turn: int) -> None:
        timesteps = ITERATIONS * self.model.n_steps * self.model.n_envs
        self.model.learn(timesteps, reset_num_timesteps=False)

    def pickle_model(self, turn: int) -> None:
        pickle.loads(pickle.dumps(self.model))

    def pickle_env(self, turn: int) -> None:
        # Without VecNormalize, which leaves its environments out.
        pickle.loads(pickle.dumps(self.venv.unwrapped)).close()

    def save_and_load(self, turn: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.zip"
            self.model.save(path)
            self.model = type(self.model).load(path, env=self.venv, device="cpu")

    def evaluate(self, turn: int) -> None:
        bridge.evaluate(self.model, self.venv, N_EPISODES, seed=turn)

    def set_attr(self, turn: int) -> None:
        if self.parameter is not None:
            value = self.env.parameter(self.parameter)
            self.venv.set_attr(self.parameter, value + turn % 2)  # some are whole
            self.venv.set_attr(self.parameter, value, indices=0)

    def check_env(self, turn: int) -> None:
        jaxenvs.check_env(self.env)

    @property
    def venv(self) -> VecEnv:
        venv: VecEnv = self.model.get_env()
        return venv

    @property
    def activities(self) -> dict[str, Callable[[int], None]]:
        """By name, in their order."""
        names = ("learn", "pickle_model", "pickle_env", "save_and_load", "evaluate", "set_attr", "check_env")
        return {name: getattr(self, name) for name in names}


def make_trainees(quick: bool) -> list[Trainee]:
    """All of them; the last is the one with images. With `quick` one only."""
    cart_pole = jaxenvs.make("CartPole-v1")

    def normalized() -> VecEnv:
        return VecNormalize(bridge.make_vec_env(cart_pole, N_ENVS, seed=0))

    trainees = [Trainee("PPO", bridge.PPO("MlpPolicy", normalized(), **PPO_SETTINGS), cart_pole, "gravity")]
    if quick:
        return trainees
    trainees.append(Trainee("A2C", bridge.A2C("MlpPolicy", normalized(), **A2C_SETTINGS), cart_pole, "gravity"))
    images = jaxenvs.TimeLimit(Images("small"), 50)
    model = bridge.PPO("CnnPolicy", bridge.make_vec_env(images, N_ENVS, seed=0), **PPO_SETTINGS)
    return [*trainees, Trainee("PPO, images", model, images, "max_steps")]


@dataclasses.dataclass
class Tally:
    """What an activity of a model came to.

    Attributes:
      failure: the first, in words.
    """

    times: int = 0
    seconds: float = 0.0
    compilations: int = 0
    late_compilations: int = 0
    failures: int = 0
    failure: str | None = None


@dataclasses.dataclass
class Soak:
    """What a run of so many seconds came to.

    Attributes:
      readings: rows of time, resident size and compilations.
      tallies: by model and activity.
    """

    readings: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    tallies: dict[tuple[str, str], Tally] = dataclasses.field(default_factory=dict)

    def growth(self) -> float:
        """Resident size at the end, of that in the middle."""
        return float(self.readings[-1]["resident_MB"] / self.readings[len(self.readings) // 2]["resident_MB"])


def soak(trainees: list[Trainee], seconds: float, read_every: float) -> Soak:
    """Go through the activities until the time is over; through all of them once in any case."""
    compilations = 0

    def count(event: str, duration_secs: float, **_: str | int) -> None:
        nonlocal compilations
        compilations += event == COMPILATION

    jax.monitoring.register_event_duration_secs_listener(count)
    result, start, next_reading = Soak(), time.perf_counter(), 0.0

    def elapsed() -> float:
        return time.perf_counter() - start

    def read(turn: int) -> None:
        gc.collect()
        row = {"minutes": elapsed() / 60, "turns": turn, "resident_MB": resident_megabytes()}
        result.readings.append(row | {"compilations": compilations})
        print(", ".join(f"{name} {value:.4g}" for name, value in result.readings[-1].items()), flush=True)

    turn = 0
    while turn == 0 or elapsed() < seconds:
        for trainee in trainees if turn % IMAGES_EVERY == 0 else trainees[:2]:
            for name, activity in trainee.activities.items():
                tally = result.tallies.setdefault((trainee.name, name), Tally())
                before, began = compilations, elapsed()
                try:
                    activity(turn)
                except Exception as error:
                    tally.failures += 1
                    tally.failure = tally.failure or f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                tally.times += 1
                tally.seconds += elapsed() - began
                tally.compilations += compilations - before
                tally.late_compilations += (compilations - before) * (began > seconds * 2 / 3)
                if elapsed() >= next_reading:
                    read(turn)
                    next_reading = elapsed() + read_every
        turn += 1
    read(turn)
    return result


def main(argv: list[str] | None = None) -> None:
    parser = common.Command(__doc__)
    parser.add_argument("--minutes", type=float, help="default 10; quick: one turn")
    options = parser.options(argv)
    quick = options.quick
    minutes = options.minutes if options.minutes is not None else (0.0 if quick else 10.0)

    report = common.Report("soak", {"minutes": minutes, "quick": quick}, NOTES)
    print()
    read_every = QUICK_READ_EVERY_SECONDS if quick else READ_EVERY_SECONDS
    result = soak(make_trainees(quick), 60 * minutes, read_every)
    report.add("readings", result.readings)
    rows = [{"model": model, "activity": name} for model, name in result.tallies]
    report.add("activities", [row | dataclasses.asdict(t) for row, t in zip(rows, result.tallies.values())])
    if not quick:
        growth, late = result.growth(), sum(tally.late_compilations for tally in result.tallies.values())
        report.require("resident size at the end / in the middle", growth, f"<= {GROWTH}", growth <= GROWTH)
        report.require("compilations in the last third", late, "0", late == 0)
        failures = sum(tally.failures for tally in result.tallies.values())
        report.require("activities that failed", failures, "0", failures == 0)
    report.finish(options)


if __name__ == "__main__":
    main()
