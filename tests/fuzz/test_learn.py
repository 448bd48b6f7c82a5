"""jaxenvs.learn refuses what it cannot train on, and says why."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxenvs
from jaxenvs.learn import A2C, PPO, ActorCritic, Training, advance, train
from jaxenvs.learn.sweep import sweep
from tests.fuzz.harness import cases, require_clear
from tests.fuzz.values import (
    INF,
    NAN,
    NOT_A_COUNT,
    NOT_A_FUNCTION,
    NOT_A_KEY,
    NOT_A_NUMBER,
    NOT_A_SEED,
    Anything,
)

VENV = jaxenvs.make_vec("CartPole-v1", 2)
NETWORK = ActorCritic.of(VENV.env)
KEY = jax.random.key(0)
NO_ENVIRONMENTS = (None, 0, "CartPole-v1", VENV.env, [], {}, Anything())


def start(algorithm, **changes):
    """Begin a training, which checks all of it before anything is computed."""
    venv, network, total = (changes.pop(name, good) for name, good in TRAINING.items())
    return Training(venv, network, algorithm.replace(**changes), total).init(KEY)


TRAINING = {"venv": VENV, "network": NETWORK, "total_timesteps": 96}


def start_ppo(**changes):
    return start(PPO(n_steps=16), **changes)


def start_a2c(**changes):
    return start(A2C(), **changes)


def test_trainings():
    not_a_share = (*NOT_A_NUMBER, -0.1, 1.1, 5, -INF)
    not_positive = (*NOT_A_NUMBER, -0.1, -INF)
    common = {
        "venv": (*NO_ENVIRONMENTS, jaxenvs.make_vec("CartPole-v1", 2, autoreset=jaxenvs.AutoresetMode.NEXT_STEP)),
        "network": (None, 0, "mlp", [], {}, Anything()),
        "total_timesteps": NOT_A_COUNT,
        "n_steps": NOT_A_COUNT,
        "sde_sample_freq": NOT_A_COUNT,
        "gamma": not_a_share,
        "gae_lambda": not_a_share,
        "ent_coef": NOT_A_NUMBER,
        "vf_coef": NOT_A_NUMBER,
        "max_grad_norm": not_positive,
        "learning_rate": (*not_positive, np.ones(7), jnp.ones((2, 2))),
    }
    ppo = {
        "batch_size": NOT_A_COUNT,
        "n_epochs": NOT_A_COUNT,
        "clip_range": not_positive,
        "clip_range_vf": not_positive[1:],
        "target_kl": not_positive[1:],
    }
    require_clear([*cases(start_ppo, {}, common | ppo), *cases(start_a2c, {}, common)], at_least=350)


def test_training_and_going_on():
    training = Training(VENV, NETWORK, PPO(n_steps=16), 64)
    bad_training = (None, 0, "ppo", VENV, PPO(), [], {}, Anything())
    state = jax.eval_shape(training.init, KEY)
    all_cases = [
        *cases(train, {"key": KEY, "training": training}, {"key": NOT_A_KEY, "training": bad_training}),
        *cases(
            advance,
            {"training": training, "state": state, "num_iterations": 1},
            {"training": bad_training, "num_iterations": NOT_A_SEED, "state": (None, 0, "state", [], {}, Anything())},
        ),
    ]
    require_clear(all_cases, at_least=45)


def test_sweeps():
    def call(function, arguments):
        return sweep(function, *arguments)

    bad_arguments = [
        (),
        (1.0,),
        (jnp.ones(()),),
        (jnp.ones((0, 2)),),
        (jnp.arange(3.0), jnp.arange(2.0)),
        (NAN,),
        ({},),
    ]
    bad_arguments += [(None,), ("abc",), (Anything(),), (np.array(["a"]),)]
    good = {"function": jnp.square, "arguments": (jnp.arange(3.0),)}
    require_clear(cases(call, good, {"function": NOT_A_FUNCTION, "arguments": bad_arguments}), at_least=15)
