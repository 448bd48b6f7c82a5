"""Search PPO's hyperparameters with Optuna: many trials, each of several seeds, train in one compiled function.

Numbers, such as the learning rate, are arguments of the compiled function, so all trials share it. `n_steps` is part of
the function: the trials of a batch have the same `n_steps`, and each value is compiled once.

Run it: python examples/tune.py
To search with several processes or machines, run this in each: python examples/tune.py --storage study.log
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optuna
import tyro
from optuna.samplers import PartialFixedSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import jaxenvs
from jaxenvs import learn
from jaxenvs.learn.sweep import reserve_threads, sweep

ENV_ID, NUM_ENVS = "CartPole-v1", 8
FIXED = {"batch_size": 256, "n_epochs": 10}  # of all trials
N_STEPS = (32, 128)

reserve_threads()  # uses all cores of a CPU; call it before JAX runs anything
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of the samplers


def suggest(trial):
    """Draw the settings of a trial, under the names of `learn.PPO` and of SB3."""
    return {
        "n_steps": trial.suggest_categorical("n_steps", N_STEPS),
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True),
        "gamma": 1 - trial.suggest_float("one_minus_gamma", 1e-3, 0.1, log=True),
        "gae_lambda": trial.suggest_float("gae_lambda", 0.8, 1.0),
        "clip_range": trial.suggest_float("clip_range", 0.1, 0.4),
        "ent_coef": trial.suggest_float("ent_coef", 1e-8, 0.1, log=True),
    }


@functools.cache  # `sweep` compiles a function once, if it is the same object
def last_return_with(n_steps, total_timesteps):
    """Return a function of a key and numbers that trains an agent and returns the mean of its last 100 episodes."""
    venv = jaxenvs.make_vec(ENV_ID, NUM_ENVS)
    training = learn.Training(
        venv, learn.ActorCritic.of(venv.env), learn.PPO(n_steps=n_steps, **FIXED), total_timesteps
    )

    def last_return(key, numbers):
        return learn.train(key, training.replace(**numbers)).metrics["episode_return"][-1]

    return last_return


def objective(settings, num_seeds, total_timesteps):
    """Return the value of each trial: the median over its seeds, so that one lucky seed does not win."""
    keys = jnp.tile(jax.random.split(jax.random.key(0), num_seeds), len(settings))
    numbers = {name: jnp.repeat(jnp.array([each[name] for each in settings]), num_seeds) for name in settings[0]}
    n_steps = int(numbers.pop("n_steps")[0])
    returns = sweep(last_return_with(n_steps, total_timesteps), keys, numbers)
    return np.median(returns.reshape(len(settings), num_seeds), axis=1)


def run_batch(study, num_trials, num_seeds, total_timesteps):
    """Draw trials, train them all at once, and tell Optuna their values."""
    trials = [study.ask() for _ in range(num_trials)]
    try:
        sampler = study.sampler
        settings = [suggest(trials[0])]
        study.sampler = PartialFixedSampler({"n_steps": settings[0]["n_steps"]}, sampler)
        settings += [suggest(trial) for trial in trials[1:]]
        study.sampler = sampler
        values = objective(settings, num_seeds, total_timesteps)
    except BaseException:  # also Ctrl-C: otherwise the trials would count as running forever
        for trial in trials:
            study.tell(trial, state=TrialState.FAIL)
        raise
    for trial, setting, value in zip(trials, settings, values):
        trial.set_user_attr("settings", setting)
        is_finite = np.isfinite(value)  # it is NaN if no episode has ended
        study.tell(trial, value if is_finite else None, None if is_finite else TrialState.PRUNED)


def main(
    trials: int = 16, batch: int = 8, seeds: int = 3, total_timesteps: int = 20_000, storage: str | None = None
) -> None:
    """Search until the study has enough trials, and print the best settings.

    Args:
      trials: how many trials the study gets from all processes together.
      batch: how many trials train at once.
      seeds: the number of agents of a trial.
      total_timesteps: the steps of each agent.
      storage: what the processes share: a path in a shared folder, for Optuna's journal, or the URL of a database, such
        as sqlite:///study.db. If not given, the study is in memory.
    """
    is_path = storage is not None and "://" not in storage
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(storage)) if is_path else storage,
        study_name=f"ppo-{ENV_ID}-{seeds}x{total_timesteps}",  # other trials cannot be compared
        sampler=TPESampler(constant_liar=True),  # tries nothing that another trial is trying
        direction="maximize",
        load_if_exists=True,
    )
    ended = (TrialState.COMPLETE, TrialState.PRUNED)
    while (left := trials - len(study.get_trials(deepcopy=False, states=ended))) > 0:
        run_batch(study, min(batch, left), seeds, total_timesteps)
        print(f"{len(study.trials)} trials, best value {study.best_value:.1f}", flush=True)
    best = study.best_trial
    assignments = " ".join(f"{name}={value:.6g}" for name, value in (best.user_attrs["settings"] | FIXED).items())
    print(f"Trial {best.number} has the best value, {best.value:.1f}. To train an agent with its settings:")
    print(f"jaxenvs train ppo {ENV_ID} --num-envs {NUM_ENVS} --hyperparameters {assignments}")


if __name__ == "__main__":
    tyro.cli(main)
