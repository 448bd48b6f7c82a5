"""The commands `jaxenvs train`, `evaluate` and `record`. `jaxenvs.cli` runs them."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

from bridge.algorithms.specs import ALGORITHMS
from bridge.app.config import LAST_SEED, TrainingConfig, load_config, tell_of_other_versions
from bridge.app.evaluation import evaluate_run
from bridge.app.hyperparameters import parse_assignments, whole_number
from bridge.app.recording import record_run
from bridge.app.runs import CONFIG, files_of, require_run, require_writable
from bridge.app.training import train_run
from bridge.app.training.distributed import joined
from bridge.app.training.in_one_function import offer_cores
from bridge.app.tuned import FILE
from jaxenvs.arguments import integer, positive_int
from jaxenvs.cli.user_errors import UserError, user_errors
from jaxenvs.learn.sweep import reserve_threads


def _shown_as(metavar: str, help: str | None = None) -> Any:
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint="")


def _read_by(read: Callable[[str], object], metavar: str) -> Any:
    """Return tyro's specification for an argument that is one word, which `read` converts; None cannot be typed."""
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
    )


def _key_of(algorithm: str) -> str:
    """Return the key of ALGORITHMS for a name in any case, such as PPO or MaskablePPO; an unknown name unchanged."""
    keys = {name.lower(): key for key, spec in ALGORITHMS.items() for name in (key, spec.name)}
    return keys.get(algorithm.lower(), algorithm)


# Optional arguments show no "(default: None)", because their help says what None means.
Algorithm = Annotated[
    str | None,
    tyro.conf.Positional,
    _read_by(_key_of, "ALGORITHM"),
    _shown_as("[ALGORITHM", f"One of {', '.join(ALGORITHMS)}."),
]
EnvId = Annotated[str | None, tyro.conf.Positional, _shown_as("ENV_ID]")]
Name = Annotated[str | None, _shown_as("NAME")]
Count = Annotated[int, _read_by(whole_number, "N")]
Number = Annotated[int | None, _read_by(whole_number, "N"), _shown_as("N")]
File = Annotated[Path | None, _shown_as("PATH")]
Settings = Annotated[
    Path | None,
    _shown_as(
        "FILE",
        "A file of settings for environments, as .yml in the format of RL Baselines3 Zoo, or as .toml (default: the "
        f"files of RL Baselines3 Zoo, if it is installed, and then its settings in {FILE}; copy that file to change "
        "them).",
    ),
]
Folder = Annotated[str | None, _shown_as("DIR")]
Run = Annotated[Path, tyro.conf.Positional, _shown_as("RUN")]
Assignments = Annotated[tuple[str, ...], _shown_as("NAME=VALUE ...")]


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `jaxenvs train`. None: not given.

    Attributes:
      algorithm: A key of ALGORITHMS.
      env_id: An id of `jaxenvs list`, of Gymnasium, or of another library, such as brax/ant. To import a module first,
        which may be in the current directory: module:id if it registers the id, or module:Class.
      num_envs: The number of environments. If not given, the number tuned for the environment. If there is none, 8 for
        on-policy and 1 for off-policy algorithms.
      total_timesteps: The number of steps, summed over all environments, such as 1e6. If not given, the number tuned
        for the environment, or 100000.
      seed: The random seed of the environments and the weights. If not given, 0.
      num_seeds: Train this many agents in one compiled function, with seed, seed + 1, ...; their zips are in
        seed-0, ...
      engine: auto compiles what it can, xla fails if something cannot be compiled, torch trains with PyTorch. If not
        given, auto.
      backend: How environments run: jax (JAX environments, compiled), serial (Gymnasium environments in this process),
        process (each in its own process), or native (EnvPool, see `jaxenvs list envpool`). If not given, jax for JAX
        environments, and serial for others.
      env_kwargs: Parameters of the environment: gravity=5.0 max_episode_steps=200
      hyperparameters: Hyper-parameters as Python literals: n_steps=32 learning_rate=lin_0.001. lin_ decays linearly
        to 0. normalize=True adds a VecNormalize, frame_stack=4 a VecFrameStack, and noise_type=normal noise_std=0.1 an
        action noise. Hyper-parameters that are not given have the values tuned for the environment, or SB3's defaults.
      eval_freq: Evaluate the agent after every N steps of all environments, and keep the best in best_model.zip.
      tensorboard_log: The folder for TensorBoard's logs of several runs. If not given, tensorboard in the run's folder.
      config: The config.json of a run, to repeat it. Other arguments override its values.
      out: The folder to write to. If not given, runs/ENV_ID-ALGORITHM-SEED.
      resume: The folder of a run: continue from its last checkpoint, as if it had never stopped, to its total
        timesteps. To train longer, also give --total-timesteps.
      devices: Divide one compiled training over this many devices of this machine; on a CPU, over this many cores.
      distributed: Divide the training over all devices of several processes, on any number of machines. Start the same
        command in each process. SLURM and similar launchers need no other arguments. Otherwise, also give the next
        three.
      coordinator: HOST:PORT of the first process, for the others to find it.
      num_processes: The number of processes.
      process_id: The number of this process, from 0 on.
    """

    algorithm: Algorithm = None
    env_id: EnvId = None
    num_envs: Annotated[Number, tyro.conf.arg(aliases=("--n-envs",))] = None
    total_timesteps: Annotated[Number, tyro.conf.arg(aliases=("--n-timesteps", "-n"))] = None
    seed: Number = None
    num_seeds: Annotated[Number, tyro.conf.arg(name="seeds")] = None
    engine: Name = None
    backend: Name = None
    env_kwargs: Assignments = ()
    hyperparameters: Assignments = ()
    hyperparams: Settings = None
    eval_freq: Number = None
    tensorboard_log: Folder = None
    config: File = None
    out: File = None
    resume: File = None
    devices: Number = None
    distributed: bool = False
    coordinator: Name = None
    num_processes: Number = None
    process_id: Number = None


def train(options: Annotated[Options, tyro.conf.arg(name="")]) -> None:
    """Train an agent, evaluate it, and draw its learning curve.

    For example: jaxenvs train ppo CartPole-v1 --num-envs 64 --total-timesteps 500000 --out runs/cartpole
    """
    resume, config, out = options.resume, options.config, options.out
    with user_errors(ValueError):
        changes = {name: parse_assignments(getattr(options, name)) for name in ("env_kwargs", "hyperparameters")}
    others = {field.name for field in dataclasses.fields(TrainingConfig)} - {"algorithm", "env_id", *changes}
    given = {name: value for name in others if (value := getattr(options, name)) is not None}
    if resume is not None:
        if any([options.algorithm, config, out, *changes.values(), given.keys() - {"total_timesteps", "devices"}]):
            raise UserError(
                "--resume continues a run with its own settings: only --total-timesteps and --devices can be given "
                "with it."
            )
        config, out = resume / CONFIG, resume
        require_run(resume, config)
    saved = _begun(options, config)
    if out is not None:
        require_writable(out)
    processes = (options.coordinator, options.num_processes, options.process_id)
    is_distributed = options.distributed or any(each is not None for each in processes)
    _prepare_devices(saved, given, is_distributed, resume)
    with joined(*processes) if is_distributed else contextlib.nullcontext():
        if is_distributed:
            given["devices"] = jax.device_count()
        resolved = TrainingConfig.resolve(**saved | given | {name: saved[name] | changes[name] for name in changes})
        if resume is not None and resolved.total_timesteps < saved["total_timesteps"]:
            raise UserError(f"--total-timesteps must be at least {saved['total_timesteps']}, the number in {config}.")
        _train(resolved, out, resume is not None)


def _begun(options: Options, config: Path | None) -> dict[str, Any]:
    """Return the arguments of TrainingConfig to begin with: the arguments of a saved run, or only what to train.

    Raises:
      UserError: options exclude each other, or what they name cannot be read.
    """
    algorithm, env_id = options.algorithm, options.env_id
    if config is None:
        if algorithm is None or env_id is None:
            raise UserError(
                "An algorithm and an environment are missing: jaxenvs train ppo CartPole-v1. Or give --config or "
                "--resume."
            )
        named = {"algorithm": algorithm, "env_id": env_id, "hyperparams": options.hyperparams}
        return named | {"env_kwargs": {}, "hyperparameters": {}}
    if algorithm is not None:
        raise UserError(
            f"Give either an algorithm and an environment or --config, not both, got {algorithm} and --config."
        )
    if options.hyperparams is not None:
        raise UserError(f"{config} already has all settings of a run: leave out --hyperparams {options.hyperparams}.")
    saved, then = load_config(config)
    tell_of_other_versions(config, then)
    return saved


def _prepare_devices(saved: dict[str, Any], given: dict[str, Any], is_distributed: bool, resume: Path | None) -> None:
    """Let JAX have threads and devices before it runs anything.

    Raises:
      UserError: --devices and --distributed cannot be combined with each other, or with the run to resume.
    """
    if saved.get("num_seeds", 1) != 1 or given.get("num_seeds", 1) != 1:
        reserve_threads()
    devices = given.get("devices")
    if is_distributed and devices is not None:
        raise UserError(f"--distributed uses all devices: leave out --devices {devices}.")
    if resume is not None and saved["devices"] is None and (is_distributed or devices is not None):
        raise UserError(
            f"{resume} was started without --devices, so it can only be resumed without: leave out --devices and "
            "--distributed."
        )
    number = given.get("devices", saved.get("devices"))
    if number is not None and not is_distributed:
        offer_cores(number)


def _train(config: TrainingConfig, out: Path | None, resume: bool) -> None:
    out = out or Path("runs") / f"{config.env_id.rpartition(':')[2]}-{config.algorithm}-{config.seed}"
    try:
        result = train_run.train(config, out, resume)
        names = [name for name in files_of(config) if any(out.glob(name))]
        print(f"Wrote to {out}: {', '.join(names)}", result, sep="\n")
    except train_run.Interrupted as interrupted:
        print(interrupted)
        sys.exit(130)


def evaluate(run: Run, episodes: Number = None, seed: Number = None, best: bool = False) -> None:
    """Print the mean and standard deviation of an agent's returns.

    For example: jaxenvs evaluate runs/CartPole-v1-ppo-0 --episodes 1000

    Args:
      run: The folder of a run, also of one that is still training. For a run with --seeds, all agents, or RUN/seed-0.
        Load only your own runs: models are pickles, which can run any code.
      episodes: The number of episodes. If not given, 100.
      seed: The seed of the first episode; the others have the following seeds. If not given, the seeds after the
        training's own.
      best: Use the best model that --eval-freq found, not the last one.
    """
    _check(episodes, seed)
    print(evaluate_run(run, episodes, seed, best))


def record(run: Run, episodes: Count = 1, seed: Number = None, out: File = None, best: bool = False) -> None:
    """Record an agent as a GIF or MP4 video.

    For example: jaxenvs record runs/CartPole-v1-ppo-0

    Args:
      run: The folder of a run, also of one that is still training.
      episodes: The number of episodes, one after the other.
      seed: The seed of the first episode; the others have the following seeds. If not given, as for `jaxenvs evaluate`.
      out: The file to write, .gif or .mp4. MP4 needs moviepy. If not given, RUN/agent.gif.
      best: Use the best model that --eval-freq found, not the last one.
    """
    _check(episodes, seed)
    out = out or run / "agent.gif"
    require_writable(out.parent)
    print(record_run(run, episodes, seed, out, best))


def _check(episodes: int | None, seed: int | None) -> None:
    with user_errors(ValueError):
        positive_int("--episodes", 1 if episodes is None else episodes)
        integer("--seed", seed or 0, 0, LAST_SEED)


COMMANDS: dict[str, Callable[..., None]] = {"train": train, "evaluate": evaluate, "record": record}
