"""check_env and require_contract: what is right passes, what is wrong is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

from jaxenvs import Environment, TimeLimit, TimeStep, VectorEnv, check_env, environment, static, struct
from jaxenvs.checks import require_contract
from tests.environments import Counter


@struct
class State:
    x: jax.Array


class Walk(Environment):
    """A correct environment that each test below breaks in one place."""

    observation_space = spaces.Box(-100.0, 100.0, (1,))
    action_space = spaces.Discrete(2)

    def first(self):
        return jnp.zeros(1)

    def next(self, x, action):
        return jnp.clip(x + 2.0 * action - 1.0, -99, 99)

    def reset(self, key):
        x = self.first()
        return State(x), TimeStep.create(x)

    def step(self, state, action):
        x = self.next(state.x, action)
        return State(x), TimeStep.create(x, 1.0, x[0] > 5)


@pytest.mark.thorough
def test_check_env_passes_what_is_right():
    check_env(environment(Walk)())
    check_env(Counter(observation_kind="dict", action_kind="box"))


def broken(**methods):
    return environment(type("Broken", (Walk,), methods))()


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (broken(first=lambda self: jnp.zeros(1, jnp.int32)), TypeError, r"int32\[1\] from reset and float32\[1\]"),
        (broken(first=lambda self: jnp.full(1, 200.0)), ValueError, "observation of step 0 must lie in Box"),
        (broken(next=lambda self, x, action: x + 150.0), ValueError, "observation of step 1 must lie in Box"),
        (broken(next=lambda self, x, action: jnp.log(-jnp.abs(x) - 1)), ValueError, "NaN|must lie in"),
        (
            broken(reset=lambda self, key: (State(jnp.zeros(1)), TimeStep.create(jnp.zeros(1), 1.0))),
            ValueError,
            "reset must return reward 0",
        ),
        (
            broken(reset=lambda self, key: (State(jnp.zeros(1)), jnp.zeros(1))),
            TypeError,
            r"reset must return \(state, TimeStep\), got",
        ),
        ("CartPole-v1", TypeError, r"env must be a jaxenvs\.Environment, got str"),
        (
            CartPoleEnv(),
            TypeError,
            r"got CartPoleEnv of Gymnasium: use jaxenvs\.sb3\.make_vec_env, and check_env",
        ),
    ],
    ids=["dtype", "first observation", "observation", "nan", "first reward", "no timestep", "id", "Gymnasium"],
)
def test_check_env_names_what_is_wrong(env, error, message):
    with pytest.raises(error, match=message):
        check_env(env)


@pytest.mark.parametrize(
    ("first", "next", "message"),
    [
        (
            0.0,
            lambda x: x[0],
            r"Numbers\.step fails .*'float' object is not subscriptable.* state\.x = 0\.0 is a Python",
        ),
        (0, lambda x: jnp.asarray(x)[0], r"IndexError: Too many indices.*state\.x = 0 is a Python number"),
        (
            0,
            lambda x: jnp.float32(x),
            r"state\.x is int32\[\] \(weak\) from reset and float32\[\] from step\. A Python nu",
        ),
    ],
    ids=["not subscriptable", "no axes", "another dtype"],
)
@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TimeLimit(env, 5)], ids=["alone", "wrapped"])
def test_a_python_number_in_a_state_is_named_with_its_field_and_method(first, next, message, wrap):
    @environment
    class Numbers(Walk):
        def reset(self, key):
            return State(first), TimeStep.create(jnp.zeros(1))

        def step(self, state, action):
            return State(next(state.x)), TimeStep.create(jnp.zeros(1))

    with pytest.raises(TypeError, match=message):
        check_env(wrap(Numbers()))


def test_check_env_walks_with_the_actions_of_its_seed():
    class Uneasy(Walk):
        """Leaves its space, by as much as the action was."""

        action_space = property(lambda self: spaces.Box(-1.0, 1.0, (1,)))

        def next(self, x, action):
            return 1000 + action

    def message(seed):
        with pytest.raises(ValueError, match="observation of step 1 must lie in Box") as caught:
            check_env(env, num_steps=2, seed=seed)
        return str(caught.value)

    env = environment(Uneasy)()
    assert message(3) == message(3) != message(4)


def test_check_env_compiles_once_for_each_structure():
    traces = []

    @environment
    class Counted(Walk):
        speed: float = 1.0

        def next(self, x, action):
            traces.append(None)
            return super().next(x, action)

    check_env(Counted())
    once = len(traces)
    check_env(Counted())
    check_env(Counted(speed=2.0))
    assert len(traces) == once


# --- require_contract: by tracing alone -----------------------------------------------------------------------------


@environment
class Sized(Walk):
    size: int = 1

    def first(self):
        return jnp.zeros(self.size)


@environment
class Branching(Walk):
    def next(self, x, action):
        return x + 1 if action > 0 else x


class PlainState:
    def __init__(self, x):
        self.x = x


BROKEN = {
    "int for a shape": (Sized(), TypeError, r"values of parameters, .* size\. .* `size: int = static\(default=3\)`"),
    "branch on action": (
        Branching(),
        TypeError,
        "Branching.reset and step must not read the values of the state, the action",
    ),
    "plain state": (
        broken(reset=lambda self, key: (PlainState(jnp.zeros(1)), TimeStep.create(jnp.zeros(1)))),
        TypeError,
        "reset must return arrays and pytrees of arrays, but state is of type PlainState.* make it a @struct",
    ),
    "text in info": (
        broken(reset=lambda self, key: (State(jnp.zeros(1)), TimeStep.create(jnp.zeros(1), info={"name": "a"}))),
        TypeError,
        r"info\['name'\] must be an array, got 'a'",
    ),
    "one value": (
        broken(reset=lambda self, key: TimeStep.create(jnp.zeros(1))),
        TypeError,
        r"reset must return \(state, TimeStep\), got TimeStep",
    ),
    "Gymnasium's five": (
        broken(step=lambda self, state, action: (state, state.x, 0.0, False, False)),
        TypeError,
        r"step must return \(state, TimeStep\), got a tuple of 5",
    ),
    "shape of a step": (
        broken(next=lambda self, x, action: jnp.zeros(2)),
        TypeError,
        r"float32\[1\] from reset and float32\[2\] from step",
    ),
    "shape of a reward": (
        broken(
            reset=lambda self, key: (
                State(jnp.zeros(1)),
                TimeStep(jnp.zeros(1), jnp.zeros(1), jnp.zeros((), bool), jnp.zeros((), bool), {}),
            )
        ),
        TypeError,
        r"reward must be float32 with shape \(\), got float32\[1\]",
    ),
    "shape of the space": (
        broken(observation_space=spaces.Box(-1, 1, (3,))),
        ValueError,
        r"observation must fit observation_space = Box.*\(3,\).*, got float32\[1\]",
    ),
    "structure of the space": (
        broken(observation_space=spaces.Dict(x=spaces.Box(-1, 1, (1,)))),
        ValueError,
        "observation must fit observation_space = Dict",
    ),
    "no space": (broken(action_space=2), TypeError, "Broken.action_space must be a gymnasium.Space, got int"),
    "a method for a space": (
        broken(action_space=lambda self: spaces.Discrete(2)),
        TypeError,
        "got method. Make it a property",
    ),
    "space without arrays": (
        broken(action_space=spaces.Text(3)),
        TypeError,
        "action_space must hold arrays.*got Text",
    ),
    "space that fails": (
        broken(action_space=property(lambda self: spaces.Discrete(0))),
        ValueError,
        "Broken.action_space fails with these parameters",
    ),
}


@pytest.mark.parametrize(("env", "error", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_environment_is_refused_where_it_is_vectorised(env, error, message):
    for check in (
        require_contract,
        check_env,
        lambda env: VectorEnv(env, 2),
        lambda env: VectorEnv(TimeLimit(env, 3), 2),
    ):
        with pytest.raises(error, match=message):
            check(env)


def test_an_environment_that_is_right_is_traced_once_for_each_structure():
    traces = []

    @environment
    class Counted(Walk):
        speed: float = 1.0
        wide: bool = static(default=False)

        def first(self):
            traces.append(None)
            return super().first()

    for _ in range(3):
        VectorEnv(Counted(), 2)
        VectorEnv(Counted(speed=2.0), 3)
    require_contract(Counted())
    assert len(traces) == 1
    VectorEnv(Counted(wide=True), 2)
    assert len(traces) == 2


def test_a_contract_is_checked_without_compiling_or_starting_a_backend():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))

    @environment
    class Fresh(Walk):
        pass

    VectorEnv(Fresh(), 2)
    batch = jax.tree.map(lambda leaf: np.full(3, leaf), Counter())
    VectorEnv(batch, 3, env_axis=0)
    assert not [name for name in compiled if "backend_compile" in name]


def test_environments_made_and_taken_apart_in_traced_code_are_not_checked():
    def run(speed):
        venv = VectorEnv(Sized().replace(size=speed), 2)  # wrong, and an error of JAX's own where it is used
        return jax.tree.leaves(venv)[0]

    assert jax.jit(run)(3) == 3
