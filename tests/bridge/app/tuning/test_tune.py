"""`bridge.tune`: trials of a custom study."""

import signal

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

import bridge
from bridge.algorithms.specs import ALGORITHMS
from bridge.app.tuning import trials as module
from bridge.app.tuning.command import open_storage
from bridge.app.tuning.spaces import distributions
from bridge.app.tuning.study import write
from bridge.app.tuning.trials import Objective
from jaxenvs.cli.user_errors import UserError
from tests.bridge.seeds.test_shared_sweep import compilations

optuna.logging.set_verbosity(optuna.logging.WARNING)
pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore:Heartbeat of storage"),
]
FIXED = {"n_steps": 16, "n_epochs": 1, "batch_size": 16}
TINY = {"num_envs": 2, "total_timesteps": 96, "num_seeds": 2, "n_evaluations": 3, "n_eval_episodes": 2}
SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "gamma": [0.9, 0.99]}


class Counting(optuna.samplers.RandomSampler):
    """Knows how many programs each trial compiled."""

    def __init__(self, compiled):
        super().__init__(seed=0)
        self.compiled, self.before = compiled, []

    def before_trial(self, study, trial):
        self.before.append(len(self.compiled))


def create(pruner=None, storage=None, sampler=None):
    sampler, pruner = sampler or optuna.samplers.RandomSampler(seed=0), pruner or optuna.pruners.NopPruner()
    return optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner, storage=storage)


def tune(study, n_trials, space=SPACE, **changes):
    return bridge.tune(
        "ppo", "CartPole-v1", study, n_trials=n_trials, space=space, **{"hyperparameters": FIXED} | TINY | changes
    )


@pytest.fixture(scope="module")
def tuned():
    """A study of three trials, whose sampler counted compilations."""
    with compilations() as compiled:
        return tune(create(sampler=Counting(compiled)), 3)


def test_the_second_trial_compiles_nothing_if_it_differs_in_numbers_alone(tuned):
    assert len({tuple(trial.params.values()) for trial in tuned.trials}) == 3
    first, second, third = tuned.sampler.before
    assert first < second == third == len(tuned.sampler.compiled)


ON_POLICY = {"n_steps": 16, "policy_kwargs": {"net_arch": [4]}}
OFF_POLICY = {"learning_starts": 8, "batch_size": 8, "train_freq": 8, "policy_kwargs": {"net_arch": [4]}}
NUMBERS = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "gamma": {"low": 0.9, "high": 0.99}}
OTHER_NUMBERS = {
    "td3": {"tau": [0.001, 0.01], "noise_std": {"low": 0.1, "high": 0.5}},
    "dqn": {"exploration_fraction": {"low": 0.1, "high": 0.5}, "target_update_interval": [1, 32]},
    "sac": {"tau": {"low": 0.001, "high": 0.08}},
}
ENV_IDS = {name: "Pendulum-v1" for name, spec in ALGORITHMS.items() if spec.actions == "Box"} | {
    "maskable_ppo": "Taxi-v4"
}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trials_of_every_algorithm_share_a_program(algorithm):
    fixed = OFF_POLICY if ALGORITHMS[algorithm].is_off_policy else ON_POLICY
    fixed = fixed | ({"noise_type": "normal"} if algorithm in ("td3", "ddpg") else {})
    fixed = fixed | ({"policy_kwargs": {"lstm_hidden_size": 4}} if algorithm == "recurrent_ppo" else {})
    space, env_id = NUMBERS | OTHER_NUMBERS.get(algorithm, {}), ENV_IDS.get(algorithm, "CartPole-v1")
    run = TINY | {"total_timesteps": 64, "n_evaluations": 1, "hyperparameters": fixed, "env_kwargs": {}}
    if algorithm in ENV_IDS:
        run["env_kwargs"] = {"max_episode_steps": 20}
    with compilations() as compiled:
        study = create(sampler=Counting(compiled))
        bridge.tune(algorithm, env_id, study, n_trials=3, space=space, **run)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    first, second, third = study.sampler.before
    assert first < second == third == len(compiled)


def test_the_value_of_a_trial_is_the_median_of_its_seeds(tuned):
    for trial in tuned.trials:
        assert trial.state == TrialState.COMPLETE
        assert trial.value == np.median(trial.user_attrs["returns"])
        assert len(trial.user_attrs["returns"]) == 2
        assert sorted(trial.intermediate_values) == [1, 2, 3]
        assert trial.intermediate_values[3] == trial.value


def test_a_study_has_trials_of_one_kind(tuned):
    with pytest.raises(
        UserError, match="has trials with other settings: total_timesteps was 96 and is 128; n_epochs was 1 and"
    ):
        tune(tuned, 4, total_timesteps=128, hyperparameters=FIXED | {"n_epochs": 2})
    assert len(tune(tuned, 2).trials) == 3  # which has enough


def test_a_pruner_ends_a_trial_between_its_evaluations():
    study = tune(create(optuna.pruners.ThresholdPruner(lower=1000)), 1)
    assert [trial.state for trial in study.trials] == [TrialState.PRUNED]
    assert sorted(study.trials[0].intermediate_values) == [1]


def test_a_trial_that_diverges_is_pruned():
    study = tune(create(), 1, {"learning_rate": [1e38]})
    assert [trial.state for trial in study.trials] == [TrialState.PRUNED]
    assert study.trials[0].intermediate_values == {}


def test_after_ctrl_c_the_trial_is_queued_up_again(monkeypatch):
    def interrupted(self, n_episodes):
        signal.raise_signal(signal.SIGINT)

    study = create()
    with monkeypatch.context() as patch:
        patch.setattr(module.Agents, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tune(study, 1)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.WAITING]
    tune(study, 1)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert study.trials[0].params == study.trials[1].params


def test_a_trial_of_a_dead_worker_is_run_again(tmp_path):
    storage = open_storage(f"sqlite:///{tmp_path}/study.db")
    study = create(storage=storage)
    lost = study.ask(distributions(SPACE))
    storage.record_heartbeat(lost._trial_id)
    storage.grace_period = -1  # it is dead at once
    tune(study, 1)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert study.trials[0].params == study.trials[1].params


def test_there_is_no_best_before_a_trial_has_a_value(tmp_path):
    objective = Objective("ppo", "CartPole-v1", FIXED, SPACE, 1, 1)
    study = create()
    for value, written in ((None, {"trials.csv"}), (9.0, {"trials.csv", "best.json"})):
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        params = {"learning_rate": 1e-3, "gamma": 0.9}
        study.add_trial(
            optuna.create_trial(state=state, value=value, params=params, distributions=distributions(SPACE))
        )
        write(study, objective, tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == written


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (UserError, "No algorithm 'pp0'", {"algorithm": "pp0"}),
        (UserError, "ppo has no hyper-parameter 'gama'", {"space": {"gama": [0.9]}}),
        (UserError, "all of them are given", {"hyperparameters": {"gamma": 0.9}, "space": {"one_minus_gamma": [0.1]}}),
        (ValueError, "study must have the direction maximize, got MINIMIZE", {"study": optuna.create_study()}),
        (TypeError, "study must be an optuna.Study", {"study": "study"}),
        (ValueError, "n_trials must be a positive int, got 0", {"n_trials": 0}),
    ],
)
def test_what_cannot_be_tuned_is_said_before_the_first_trial(error, message, changes):
    with pytest.raises(error, match=message):
        bridge.tune(**{"algorithm": "ppo", "env_id": "CartPole-v1"} | changes)
