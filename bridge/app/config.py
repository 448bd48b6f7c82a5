"""TrainingConfig: all that a training run depends on, resolved, checked, and saved as JSON."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import is_image_space

import jaxenvs
from bridge.algorithms.specs import ALGORITHMS
from bridge.app.environments import EnvironmentInfo, find
from bridge.app.hyperparameters import NOISE, check_values
from bridge.app.tuned import settings_for
from bridge.sb3 import Space
from jaxenvs.arguments import did_you_mean, instance, integer, non_negative_int, positive_int
from jaxenvs.cli.user_errors import UserError, user_errors
from jaxenvs.files import replacing

# For environments without an entry in TUNED. Off-policy as in the Zoo: each environment's step brings an update.
DEFAULT_NUM_ENVS, DEFAULT_NUM_ENVS_OFF_POLICY = 8, 1
DEFAULT_TOTAL_TIMESTEPS = 100_000

# Other arguments of a constructor are decided by the run itself, not by the user.
NOT_HYPERPARAMETERS = ("policy", "env", "tensorboard_log", "verbose", "seed", "engine", "_init_setup_model")
# Arguments that JSON cannot hold. Action noise is given by names: NOISE.
NOT_JSON = ("action_noise", "replay_buffer_class", "replay_buffer_kwargs")
LAST_SEED = 2**32 - 1  # NumPy's
# The types of entries in a config.json on which code relies before it checks values.
TYPES: dict[str, Any] = {name: str for name in ("algorithm", "env_id", "engine", "backend")}
TYPES |= {name: dict for name in ("env_kwargs", "hyperparameters", "versions")}
TYPES |= {"total_timesteps": int, "num_seeds": int, "devices": int | None, "tensorboard_log": str | None}
PACKAGES = ("jax", "torch", "stable-baselines3", "gymnasium", "numpy")


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """All that a training run depends on, except for the versions of the packages.

    Attributes:
      algorithm: a key of ALGORITHMS.
      env_id: an id of jaxenvs, Gymnasium or EnvPool; or module:id or module:Class.
      env_kwargs: parameters of the environment; lists become tuples, as static parameters must be hashable.
      num_envs, total_timesteps, seed: of the run.
      hyperparameters: every argument of the algorithm, defaults included; and `normalize`, whether a VecNormalize wraps
        the environments, or its arguments, and `frame_stack`, the number of frames that a VecFrameStack stacks. They
        are JSON: a schedule is a string, such as "lin_0.001", and action noise is `noise_type` and `noise_std`.
      engine: of the algorithm.
      num_seeds: the number of agents, with seed, seed + 1, ...
      backend: what steps the environments, one of `bridge.app.environments.BACKENDS`.
      devices: the number of devices over which the training is divided; None to train as SB3 does, undivided.
      eval_freq: evaluate after this many steps of all environments, and keep the best model; 0 for never.
      tensorboard_log: the folder for TensorBoard's logs of this and other runs; None for one in the run's folder.
    """

    algorithm: str
    env_id: str
    env_kwargs: dict[str, Any]
    num_envs: int
    total_timesteps: int
    seed: int
    hyperparameters: dict[str, Any]
    engine: str = "auto"
    num_seeds: int = 1
    backend: str = "auto"
    devices: int | None = None
    eval_freq: int = 0
    tensorboard_log: str | None = None

    @property
    def is_in_one_function(self) -> bool:
        """True if a whole training is one compiled function."""
        return self.num_seeds > 1 or self.devices is not None

    @functools.cached_property
    def environment(self) -> EnvironmentInfo:
        """The environments of the run."""
        return find(self.backend, self.env_id, self.env_kwargs)

    @classmethod
    def resolve(
        cls,
        algorithm: str,
        env_id: str,
        env_kwargs: dict[str, Any] | None = None,
        num_envs: int | None = None,
        total_timesteps: int | None = None,
        seed: int = 0,
        hyperparameters: dict[str, Any] | None = None,
        hyperparams: Path | None = None,
        **run: Any,
    ) -> TrainingConfig:
        """Return a config with missing values from files of settings, if they have the environment, or SB3's defaults.

        If the batch size is not given, it is the one nearest to the default that divides a rollout.

        Args:
          hyperparams: a file of settings, which must have the environment; see `bridge.app.tuned.settings_for`.
          run: further fields.

        Raises:
          UserError: something is unknown, of the wrong type, or does not fit together.
        """
        if algorithm not in ALGORITHMS:
            hint = did_you_mean(algorithm.lower(), ALGORITHMS) or f"There are: {', '.join(ALGORITHMS)}."
            raise UserError(f"No algorithm {algorithm!r}. {hint}")
        given, backend, env_kwargs = hyperparameters or {}, run.pop("backend", "auto"), _with_tuples(env_kwargs or {})
        environment = find(backend, env_id, env_kwargs)
        _check_actions(algorithm, env_id, environment.action_space)
        name = env_id.removeprefix("jaxenvs/").rpartition(":")[2]
        settings = dict(settings_for(algorithm, name, environment.is_game, hyperparams))
        if own := settings.pop("env_kwargs", None):
            with user_errors(TypeError):
                instance("env_kwargs", own, dict, "parameters by their names")
            env_kwargs = _with_tuples(own) | env_kwargs
            environment = find(backend, env_id, env_kwargs)
        is_off_policy = ALGORITHMS[algorithm].is_off_policy
        tuned_num_envs = settings.pop("n_envs", DEFAULT_NUM_ENVS_OFF_POLICY if is_off_policy else DEFAULT_NUM_ENVS)
        num_envs = tuned_num_envs if num_envs is None else num_envs
        tuned_total_timesteps = settings.pop("n_timesteps", DEFAULT_TOTAL_TIMESTEPS)
        total_timesteps = tuned_total_timesteps if total_timesteps is None else total_timesteps
        defaults = _default_arguments(algorithm) | {"policy": _policy(algorithm, environment.observation_space)}
        resolved = {**defaults, **settings, **given}
        run |= {"hyperparameters": resolved, "backend": environment.backend}
        new = cls(algorithm, env_id, env_kwargs, num_envs, total_timesteps, seed, **run)
        vars(new)["environment"] = environment
        for unknown in (given.keys() | settings.keys()) - defaults.keys():
            hint = did_you_mean(unknown, defaults) or f"There are: {', '.join(defaults)}."
            raise UserError(f"{algorithm} has no hyper-parameter {unknown!r}. {hint}")
        with user_errors((TypeError, ValueError), "--env-kwargs and --hyperparameters are stored as JSON: "):
            new.require_kept_by_json()
        with user_errors((TypeError, ValueError)):
            _check_run(new)
            check_values(algorithm, {**settings, **given}, defaults)
        if is_off_policy and resolved["learning_starts"] >= total_timesteps:
            raise UserError(
                f"learning_starts={resolved['learning_starts']} must be less than --total-timesteps {total_timesteps}, "
                "or nothing is learned: use a smaller learning_starts or train longer."
            )
        if not is_off_policy:
            vars(new)["total_timesteps"] = _fit_rollout(resolved, num_envs, total_timesteps, "batch_size" not in given)
        return new

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a config.json has them."""
        fields: dict[str, object] = json.loads(json.dumps(dataclasses.asdict(self)))
        return fields

    def require_kept_by_json(self) -> None:
        """Raise a TypeError or ValueError if a config.json cannot hold a parameter, or would change it."""
        now, kept = (fields["env_kwargs"] | fields["hyperparameters"] for fields in (vars(self), self.as_json()))
        for name, value in now.items():
            if _with_tuples(value) != _with_tuples(kept.get(name)):
                raise ValueError(f"{name}={value!r} would become {kept.get(name)!r}, use a dict with texts as keys.")

    def require_begun_as(self, begun: dict[str, Any], path: Path) -> None:
        """Raise if a config.json was changed by hand, except for a larger budget and other devices.

        Args:
          begun: `as_json` of the config that the checkpoint was trained with.
          path: of the config.json.

        Raises:
          UserError: a field differs.
        """
        before, now = (fields | fields["hyperparameters"] for fields in (begun, self.as_json()))
        others = before.keys() - {"total_timesteps", "devices", "hyperparameters"}
        changes = [
            f"{name} was {before[name]!r} and is {now.get(name)!r}"
            for name in sorted(others)
            if now.get(name) != before[name]
        ]
        if changes:
            raise UserError(
                f"{path} was changed after the checkpoint beside it was written: {', '.join(changes)}. --resume needs "
                f"the settings that the run was started with: undo the change, or start a new run with --config {path}."
            )

    def save(self, path: Path) -> None:
        """Write the config as JSON, with the versions of the packages."""
        with replacing(path) as unfinished:
            unfinished.write_text(json.dumps({**dataclasses.asdict(self), "versions": versions()}, indent=2) + "\n")


def _check_run(config: TrainingConfig) -> None:
    """Raise unless the fields besides the hyperparameters have values that fit together.

    Raises:
      UserError, ValueError: they do not.
    """
    numbers = {"--num-envs": config.num_envs, "--total-timesteps": config.total_timesteps, "--seeds": config.num_seeds}
    for flag, number in numbers.items():
        positive_int(flag, number)
    integer("--seed", config.seed, 0, LAST_SEED + 1 - config.num_seeds)
    non_negative_int("--eval-freq", config.eval_freq)
    if config.devices is not None:
        positive_int("--devices", config.devices)
    flag = "--seeds" if config.devices is None else "--devices"
    others = {"--eval-freq": config.eval_freq, "--tensorboard-log": config.tensorboard_log}
    others["--seeds"] = config.devices is not None and config.num_seeds > 1
    for other, is_given in others.items():
        if is_given and config.is_in_one_function:
            raise UserError(
                f"{flag} compiles a whole training, so it cannot be combined with {other}: leave out one of them."
            )


def algorithm_class(name: str) -> type[BaseAlgorithm]:
    """Return the class of a key of ALGORITHMS.

    Raises:
      UserError: it needs a package that is not installed.
    """
    with user_errors(ImportError):
        return ALGORITHMS[name].cls


def load_config(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments of `TrainingConfig.resolve` in a file of `TrainingConfig.save`, and the versions in it.

    Raises:
      UserError: there is no such file, or it is another kind of file.
    """
    try:
        arguments = json.loads(path.read_text())
        then = arguments.pop("versions")
        if arguments.keys() != {field.name for field in dataclasses.fields(TrainingConfig)}:
            raise ValueError("other names")
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is not the config.json of a training run.") from error
    for name, value in (arguments | {"versions": then}).items():
        if not isinstance(value, kind := TYPES.get(name, object)):
            raise UserError(f"{name} in {path} must be of type {getattr(kind, '__name__', kind)}, got {value!r}.")
    return arguments, then


def versions() -> dict[str, str]:
    """Return the versions of the packages on which the weights of a run depend."""
    return {"jaxenvs": jaxenvs.__version__, **{package: version(package) for package in PACKAGES}}


def tell_of_other_versions(path: Path, then: dict[str, str]) -> None:
    """Print to stderr which other versions a config was written with."""
    now = versions()
    other = [
        f"{package} {then.get(package)} (now {now[package]})" for package in now if then.get(package) != now[package]
    ]
    if other:
        print(f"{path} was written with {', '.join(other)}: the weights may differ.", file=sys.stderr)


def _policy(algorithm: str, space: Space) -> str:
    kind = "Mlp"
    if isinstance(space, gymnasium.spaces.Dict):
        kind = "MultiInput"
    elif is_image_space(space):
        kind = "Cnn"
    return f"{kind}{ALGORITHMS[algorithm].policy_kind}Policy"


def _with_tuples(value: object) -> Any:
    """Return the value with each list as a tuple; JSON turns both into lists."""
    if isinstance(value, dict):
        return {name: _with_tuples(each) for name, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list | tuple) else value


def _default_arguments(algorithm: str) -> dict[str, object]:
    parameters = inspect.signature(algorithm_class(algorithm)).parameters
    defaults = {
        name: each.default for name, each in parameters.items() if name not in (*NOT_HYPERPARAMETERS, *NOT_JSON)
    }
    return {"normalize": False, "frame_stack": 1} | defaults | (NOISE if "action_noise" in parameters else {})


def refuse_hyperparameters(argv: list[str]) -> None:
    """Raise a UserError if options of `jaxenvs train` are hyper-parameters of the algorithm among the words `argv`."""
    algorithm = next((word for word in map(str.lower, argv) if word in ALGORITHMS), "ppo")
    known, options = _default_arguments(algorithm), re.findall(r"(?<!\S)--(\S+?)[= ](\S+)", " ".join(argv))
    given = [f"{name.replace('-', '_')}={value}" for name, value in options if name.replace("-", "_") in known]
    if given:
        raise UserError(f"{algorithm} takes hyper-parameters in one option: --hyperparameters {' '.join(given)}")


def _check_actions(algorithm: str, env_id: str, space: Space) -> None:
    expected, kind = ALGORITHMS[algorithm].actions, type(space).__name__
    if expected not in (None, kind):
        others = [name for name, spec in ALGORITHMS.items() if spec.actions in (None, kind)]
        raise UserError(
            f"{algorithm} needs an environment with {expected} actions, but {env_id} has {kind} actions: use one of "
            f"{', '.join(others)}."
        )


def _fit_rollout(hyperparameters: dict[str, Any], num_envs: int, total_timesteps: int, adjust_batch_size: bool) -> int:
    """Choose a batch size that divides a rollout, if it was not given. Return the budget: at least one rollout."""
    rollout: int = num_envs * hyperparameters["n_steps"]
    described = f"{num_envs} environments x n_steps={hyperparameters['n_steps']} make rollouts of {rollout} steps"
    batch_size = hyperparameters.get("batch_size", rollout)
    if rollout % batch_size:
        divisors = (size for size in range(1, rollout + 1) if rollout % size == 0)
        nearest = min(divisors, key=lambda size: abs(size - batch_size))
        if not adjust_batch_size:
            raise UserError(f"{described}, which batch_size={batch_size} does not divide: use batch_size={nearest}.")
        hyperparameters["batch_size"] = nearest
    if rollout > total_timesteps:
        more = f"{described}, more than --total-timesteps {total_timesteps}"
        print(f"{more}: training for one rollout, as SB3 does. Use a smaller n_steps to train less.", file=sys.stderr)
    return max(rollout, total_timesteps)
