"""evaluate: the numbers of SB3's evaluate_policy, of whole episodes, in one program."""

import copy
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env as sb3_make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy, MultiInputActorCriticPolicy
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

import bridge
import jaxenvs
from bridge import JaxVecEnv, make_vec_env
from bridge.errors import NotCompilable
from bridge.evaluation import Evaluation, _program, evaluate
from bridge.wrappers import CompiledWrapper, chain, register_wrapper
from jaxenvs import Environment, TimeLimit, TimeStep, VectorEnv, environment, struct
from tests.environments import Counter

N = 6

pytestmark = pytest.mark.filterwarnings("ignore:.*already wrapped with a `Monitor`")


@functools.cache
def policy_for(env, cls=ActorCriticPolicy, **settings):
    """One that does different things in different states."""
    torch.manual_seed(2)
    env = jaxenvs.make(env) if isinstance(env, str) else env
    policy = cls(env.observation_space, env.action_space, lambda _: 1e-3, net_arch=[8], **settings)
    with torch.no_grad():
        for parameter in policy.parameters():
            scale = 0.5 if parameter.ndim > 1 else 0.05
            parameter.add_(scale * torch.randn(parameter.shape))
    return policy


def constant_policy(env, numbers, **settings):
    """One that gives the distribution of these numbers, whatever it sees."""
    policy = ActorCriticPolicy(env.observation_space, env.action_space, lambda _: 1e-3, net_arch=[8], **settings)
    with torch.no_grad():
        policy.mlp_extractor.policy_net[0].weight.zero_()
        policy.mlp_extractor.policy_net[0].bias.fill_(1.0)
        policy.action_net.weight.zero_()
        policy.action_net.bias.copy_(torch.tensor(numbers))
    return policy


def of_sb3(model, env, seed=None):
    """The first episode of each lane, by lane."""
    if seed is not None:
        env.seed(seed)
    ends = {}

    def at_step(local_variables, _):
        if local_variables["done"]:
            episode = local_variables["info"]["episode"]
            ends[local_variables["i"]] = (episode["r"], episode["l"])

    evaluate_policy(model, env, env.num_envs, callback=at_step, warn=False)
    returns, lengths = zip(*[ends[lane] for lane in range(env.num_envs)])
    return np.array(returns), np.array(lengths)


def assert_equal(one, other):
    for name in ("returns", "lengths", "terminated", "truncated"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-5, err_msg=name)


def ends(result):
    return set(zip(result.lengths.tolist(), result.terminated.tolist(), result.truncated.tolist()))


@struct
class TicketState:
    length: jax.Array
    steps: jax.Array


@environment
class Ticket(Environment[TicketState]):
    """Half of the episodes last 1 step, half 41; each step gives 1."""

    observation_space = spaces.Box(0.0, 50.0, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, key):
        length = jnp.where(jax.random.bernoulli(key), 1, 41).astype(jnp.int32)
        return TicketState(length, jnp.zeros((), jnp.int32)), TimeStep.create(jnp.zeros(1))

    def step(self, state, action):
        state = TicketState(state.length, state.steps + 1)
        observation = state.steps[None].astype(jnp.float32)
        return state, TimeStep.create(observation, reward=1.0, terminated=state.steps >= state.length)


@environment
class Picture(Environment[jax.Array]):
    """Shows one random picture, channels last, for 2 steps. The reward is the action."""

    observation_space = spaces.Box(0, 255, (4, 3, 2), np.uint8)
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def reset(self, key):
        picture = jax.random.randint(key, (4, 3, 2), 0, 256, jnp.uint8)
        return (picture, jnp.zeros((), jnp.int32)), TimeStep.create(picture)

    def step(self, state, action):
        picture, steps = state
        return (picture, steps + 1), TimeStep.create(picture, reward=action[0], terminated=steps >= 1)


# --- The numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_episodes_are_those_of_evaluate_policy(env_id):
    policy = policy_for(env_id)
    returns, lengths = of_sb3(policy, make_vec_env(env_id, N, seed=3))
    result = evaluate(policy, env_id, N, seed=3)
    np.testing.assert_array_equal(result.lengths, lengths)
    np.testing.assert_allclose(result.returns, returns, rtol=1e-4)
    assert np.ptp(returns) > 10


def test_dict_observations_are_those_of_evaluate_policy():
    env = Counter(observation_kind="dict", action_kind="box")
    inner = dict(env.observation_space.spaces)
    inner["image"] = spaces.Box(0, 255, (1, 36, 36), np.uint8)
    torch.manual_seed(0)
    policy = MultiInputActorCriticPolicy(spaces.Dict(inner), env.action_space, lambda _: 1e-3, net_arch=[8])
    returns, _ = of_sb3(policy, JaxVecEnv(env, N, seed=0))
    np.testing.assert_allclose(evaluate(policy, env, N, max_steps=10).returns, returns, rtol=1e-4)


def test_short_episodes_weigh_no_more_than_long_ones():
    num_episodes = 400
    result = evaluate(policy_for(Ticket()), Ticket(), num_episodes, max_steps=100)
    np.testing.assert_array_equal(result.returns, result.lengths)
    assert result.mean == pytest.approx(21, abs=3 * 20 / np.sqrt(num_episodes))

    env, first_ended = JaxVecEnv(Ticket(), num_episodes, seed=0), []
    env.reset()
    while len(first_ended) < num_episodes:
        infos = env.step(np.zeros(num_episodes, int))[3]
        first_ended += [info["episode"]["l"] for info in infos if "episode" in info]
    assert np.mean(first_ended) < 2  # what not to do


@pytest.mark.parametrize("deterministic", [True, False])
def test_results_do_not_depend_on_how_many_episodes_run_at_once(deterministic):
    policy = policy_for("CartPole-v1")
    run = functools.partial(evaluate, policy, "CartPole-v1", 7, deterministic=deterministic)
    assert_equal(run(max_lanes=3), run())


def test_episode_i_has_the_seed_plus_i():
    policy = policy_for("CartPole-v1")
    np.testing.assert_array_equal(
        evaluate(policy, "CartPole-v1", N, seed=-2).lengths[2:], evaluate(policy, "CartPole-v1", N, seed=0).lengths[:-2]
    )


def test_summary_is_mean_and_population_deviation():
    flags = np.zeros(2, bool)
    result = Evaluation(np.array([1.0, 4.0]), np.array([1, 2]), flags, flags)
    assert (result.mean, result.std, str(result)) == (2.5, 1.5, "2.5 ± 1.5 over 2 episodes")


# --- Where episodes end -------------------------------------------------------------------------------------------


def test_it_tells_who_ended_an_episode():
    policy = policy_for(Counter())
    assert ends(evaluate(policy, Counter(), N, max_steps=5)) == {(5, True, False)}
    assert ends(evaluate(policy, TimeLimit(Counter(), 4), N)) == {(4, False, True)}
    assert ends(evaluate(policy, TimeLimit(Counter(), 5), N)) == {(5, True, True)}


def test_episodes_that_go_on_after_max_steps_count_as_truncated():
    assert ends(evaluate(policy_for(Counter()), Counter(), N, max_steps=3)) == {(3, False, True)}


# --- Drawn actions ------------------------------------------------------------------------------------------------


def test_drawn_actions_are_reproduced_by_the_seed():
    policy = policy_for("Pendulum-v1")
    drawn = [evaluate(policy, "Pendulum-v1", N, deterministic=False, seed=seed).returns for seed in (0, 0, 100)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.isclose(drawn[0], drawn[2]).any()
    assert not np.isclose(drawn[0], evaluate(policy, "Pendulum-v1", N).returns).any()


def test_actions_are_drawn_from_the_distribution_anew_in_each_step_and_lane():
    probabilities = np.array([0.2, 0.3, 0.5])
    policy = constant_policy(Counter(), np.log(probabilities))
    result = evaluate(policy, Counter(), 4000, deterministic=False, max_steps=5)
    mean = 5 * probabilities @ np.arange(3)
    variance = 5 * probabilities @ np.arange(3) ** 2 - mean**2 / 5
    assert result.mean == pytest.approx(mean, abs=4 * np.sqrt(variance / 4000))
    assert result.std == pytest.approx(np.sqrt(variance), rel=0.05)


def test_state_dependent_exploration_keeps_its_matrix_for_an_episode():
    env = Counter(action_kind="box")
    policy = constant_policy(env, [0.0, 0.0], use_sde=True, log_std_init=-2.0)
    first_step, episode = (evaluate(policy, env, N, deterministic=False, max_steps=steps) for steps in (1, 5))
    np.testing.assert_allclose(episode.returns, 5 * first_step.returns, rtol=1e-5)
    assert len(set(first_step.returns)) == N


# --- Models and environments --------------------------------------------------------------------------------------


def test_a_model_and_its_policy_give_the_same_and_stay_as_they_are():
    model = stable_baselines3.A2C("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), seed=0)
    model.policy.set_training_mode(True)
    model.env.reset()
    state = model.env.get_state()
    assert_equal(evaluate(model, model.env, N), evaluate(model.policy, "CartPole-v1", N))
    assert model.policy.training
    after = model.env.get_state()
    assert all(np.array_equal(after[name], array) for name, array in state.items())


def test_environments_of_all_kinds_give_the_same(tmp_path):
    policy, env = policy_for("CartPole-v1"), jaxenvs.make("CartPole-v1")
    expected = evaluate(policy, "CartPole-v1", N)
    monitored = make_vec_env(env, 2, monitor_dir=str(tmp_path))
    for same in (env, VectorEnv(env, 2), JaxVecEnv(env, 3), monitored):
        assert_equal(evaluate(policy, same, N), expected)


def test_parameters_of_lanes_are_shared_out_among_the_episodes():
    env = JaxVecEnv(Counter(), 3)
    env.set_attr("length", 2, indices=[1])
    result = evaluate(policy_for(Counter()), env, 7, max_steps=10, max_lanes=4)
    assert result.lengths.tolist() == [5, 2, 5, 5, 2, 5, 5]


def normalized_pendulum():
    env = VecNormalize(make_vec_env("Pendulum-v1", N, seed=3), clip_obs=1.5)
    env.reset()
    env.obs_rms.mean[:], env.obs_rms.var[:] = [0.3, -0.2, 1.0], [0.2, 0.1, 9.0]
    return env


def test_the_statistics_of_vec_normalize_are_used_and_stay_as_they_are():
    policy, env = policy_for("Pendulum-v1"), normalized_pendulum()
    before = (env.obs_rms.mean.copy(), env.obs_rms.count, env.ret_rms.count, env.returns.copy())
    result = evaluate(policy, env, N, seed=3)
    after = (env.obs_rms.mean, env.obs_rms.count, env.ret_rms.count, env.returns)
    assert all(np.array_equal(a, b) for a, b in zip(before, after))
    env.training = False
    returns, _ = of_sb3(policy, env, seed=3)  # of the infos, which have them before normalisation
    np.testing.assert_allclose(result.returns, returns, rtol=1e-4)
    assert not np.allclose(result.returns, evaluate(policy, "Pendulum-v1", N, seed=3).returns, rtol=1e-2)


def test_a_model_brings_the_statistics_of_its_own_vec_normalize():
    env = normalized_pendulum()
    model = stable_baselines3.A2C("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, seed=0)
    expected = evaluate(model.policy, env, N)
    assert_equal(evaluate(model, "Pendulum-v1", N), expected)
    assert_equal(evaluate(model, make_vec_env("Pendulum-v1", 2), N), expected)


def test_images_are_transposed_as_sb3_does():
    model = stable_baselines3.A2C("MlpPolicy", JaxVecEnv(Picture(), N, seed=0), policy_kwargs={"net_arch": [8]}, seed=0)
    returns, _ = of_sb3(model, model.get_env(), seed=0)
    for env in (Picture(), model.get_env()):
        np.testing.assert_allclose(evaluate(model, env, N, max_steps=2).returns, returns, rtol=1e-4)


# --- Compiled once ------------------------------------------------------------------------------------------------


def test_other_weights_seeds_limits_and_physics_do_not_compile_again():
    policy, env = copy.deepcopy(policy_for("Pendulum-v1")), jaxenvs.make("Pendulum-v1")
    first = evaluate(policy, env, N)
    with torch.no_grad():
        policy.action_net.weight.mul_(2.0)
    programs = _program()._cache_size()
    second = evaluate(policy, env.replace(gravity=9.0), N, seed=7, max_steps=100)
    assert _program()._cache_size() == programs
    assert not np.isclose(first.returns, second.returns).any()


# --- Refusals -----------------------------------------------------------------------------------------------------


def untranslatable():
    policy = ActorCriticPolicy(spaces.Box(-1, 1, (2,)), spaces.Discrete(3), lambda _: 1e-3)
    policy.action_net.register_forward_hook(lambda *_: None)
    return policy


class OwnPredict(ActorCriticPolicy):
    def predict(self, *args, **kwargs):
        return super().predict(*args, **kwargs)


class OwnDQN(stable_baselines3.DQN):
    def predict(self, *args, **kwargs):
        return super().predict(*args, **kwargs)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (untranslatable, "hooks"),
        (lambda: policy_for(Counter(), OwnPredict), "OwnPredict has a method predict of its own"),
        (lambda: OwnDQN("MlpPolicy", "CartPole-v1", buffer_size=1), "OwnDQN has a method predict of its own"),
    ],
    ids=["layers", "policy", "algorithm"],
)
def test_what_cannot_be_translated_is_referred_to_evaluate_policy(model, what):
    with pytest.raises(NotCompilable, match=f"{what}.*evaluation.evaluate_policy"):
        evaluate(model(), Counter(), N, max_steps=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": print}, "model must be an SB3 algorithm or a policy of one, got a builtin_function_or_method"),
        ({"seed": float("nan")}, "seed must be an int, got nan"),
        ({"deterministic": "abc"}, "deterministic must be a bool, got 'abc'"),
        ({"n_episodes": 0}, "n_episodes must be a positive int, got 0"),
    ],
    ids=str,
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        evaluate(**{"model": policy_for(Counter()), "env": Counter(), "n_episodes": N, "max_steps": 5, **arguments})


@pytest.mark.parametrize("what", ["weights", "statistics"])
def test_nan_is_no_result(what):
    env = VecNormalize(JaxVecEnv(Counter(), 2))
    policy = copy.deepcopy(policy_for(Counter()))  # which other tests share
    if what == "weights":
        with torch.no_grad():
            policy.action_net.weight[0, 0] = np.nan
    else:
        env.obs_rms.mean[0] = np.nan
    with pytest.raises(ValueError, match=f"{what} of .* are NaN"):
        evaluate(policy, env, N, max_steps=5)


def test_other_numbers_of_episodes_compile_nothing():
    policy = policy_for(Counter())
    evaluate(policy, Counter(), 9, max_steps=5)
    before = _program()._cache_size()
    assert len(evaluate(policy, Counter(), 13, max_steps=5).returns) == 13
    assert _program()._cache_size() == before


def test_a_model_trained_on_normalised_observations_warns_without_them(tmp_path):
    model = bridge.PPO("MlpPolicy", VecNormalize(JaxVecEnv(Counter(), 2)), n_steps=8, batch_size=16, seed=0)
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="trained on observations normalised by a VecNormalize"):
        evaluate(bridge.PPO.load(tmp_path / "model"), Counter(), N, max_steps=5)


def test_other_wrappers_are_referred_to_evaluate_policy():
    class Unknown(Doubled):
        pass

    with pytest.raises(NotCompilable, match=r"Unknown.*evaluation.evaluate_policy"):
        evaluate(policy_for(Counter()), Unknown(JaxVecEnv(Counter(), 2)), N, max_steps=5)


# --- Wrappers -----------------------------------------------------------------------------------------------------


class Doubled(VecEnvWrapper):
    """Twice the reward, and the number of the step in the place of the first number that is seen."""

    def __init__(self, venv):
        super().__init__(venv)
        self.steps, self.resets = np.zeros(venv.num_envs, np.float32), 0

    def reset(self):
        self.steps[:] = 0  # not made anew, and so of as many as there were
        self.resets += 1
        return self._see(self.venv.reset())

    def step_wait(self):
        observation, reward, done, infos = self.venv.step_wait()
        self.steps = np.where(done, 0, self.steps + 1).astype(np.float32)
        return self._see(observation), 2 * reward, done, infos

    def _see(self, observation):
        return np.concatenate([self.steps[:, None], observation[:, 1:]], axis=1)


class CompiledDoubled(CompiledWrapper):
    def state(self):
        return self.wrapper.steps

    @staticmethod
    def step(state, timestep, action):
        state = jnp.where(timestep.done, 0.0, state + 1)
        see = functools.partial(jnp.concatenate, axis=1)
        observation, last = (
            see([state[:, None], each[:, 1:]]) for each in (timestep.observation, timestep.final_observation)
        )
        return state, timestep.replace(observation=observation, final_observation=last, reward=2 * timestep.reward), ()

    def write_back(self, state):
        self.wrapper.steps = np.array(state)


@pytest.fixture
def doubled(monkeypatch):
    monkeypatch.setattr(chain, "_COMPILED", dict(chain._COMPILED))
    register_wrapper(Doubled, CompiledDoubled)


def seeing(env):
    """A policy for what an environment shows."""
    torch.manual_seed(2)
    policy = ActorCriticPolicy(env.observation_space, env.action_space, lambda _: 1e-3, net_arch=[8])
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return policy


WRAPPERS = {
    "stack": lambda env: VecFrameStack(env, 3),
    "stack of normalised": lambda env: VecFrameStack(VecNormalize(env, training=False, clip_obs=0.7), 2),
    "own": Doubled,
    "own in others": lambda env: VecMonitor(VecFrameStack(Doubled(VecCheckNan(env)), 2)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_episodes_through_wrappers_are_those_of_evaluate_policy(wrap, doubled):
    env = wrap(make_vec_env("Pendulum-v1", 4, seed=3))
    policy = seeing(env)
    result = evaluate(policy, env, 4, seed=3)
    returns, lengths = of_sb3(policy, env, seed=3)
    np.testing.assert_allclose(result.returns, returns, rtol=1e-3)
    np.testing.assert_array_equal(result.lengths, lengths)


def test_a_vec_monitor_outside_counts_what_wrappers_make_of_rewards(doubled):
    env = Doubled(make_vec_env("Pendulum-v1", 2, seed=3))
    policy = seeing(env)
    plain, monitored = (evaluate(policy, each, 2).returns for each in (env, VecMonitor(env)))
    np.testing.assert_allclose(monitored, 2 * plain, rtol=1e-5)


def test_a_wrapper_of_ones_own_runs_in_copies_of_as_many_lanes_and_stays_as_it_is(doubled):
    env = Doubled(make_vec_env("Pendulum-v1", 2, seed=3))
    policy = seeing(env)
    env.reset()
    env.steps[:] = 7.0
    result = evaluate(policy, env, 3, seed=3)
    assert (env.steps.tolist(), env.resets) == ([7.0, 7.0], 1)
    np.testing.assert_allclose(result.returns[2:], evaluate(policy, env, 1, seed=5).returns, rtol=1e-5)


def test_more_episodes_than_lanes_run_at_once_in_wrappers_of_sb3():
    env = VecFrameStack(make_vec_env("Pendulum-v1", 1, seed=3), 2)
    policy = seeing(env)
    assert_equal(evaluate(policy, env, 5), evaluate(policy, env, 5, max_lanes=2))


@pytest.mark.parametrize("is_transposed_first", [True, False])
def test_the_statistics_of_a_training_go_where_they_were_in_it(is_transposed_first):
    if is_transposed_first:
        env, policy = Picture(), "MlpPolicy"
        trained_in = VecNormalize(VecTransposeImage(JaxVecEnv(env, 2, seed=0)), clip_obs=0.9)
        trained_in.obs_rms.mean[:], trained_in.obs_rms.var[:] = np.arange(2).reshape(2, 1, 1) * 200, 80.0**2
    else:
        env, policy = Counter(observation_kind="boxes", action_kind="box"), "MultiInputPolicy"
        trained_in = VecTransposeImage(VecNormalize(JaxVecEnv(env, 2, seed=0), norm_obs_keys=["vector"]))
        trained_in.venv.obs_rms["vector"].mean[:] = [2.0, 0.5]
    model = stable_baselines3.A2C(policy, trained_in, policy_kwargs={"net_arch": [8]}, seed=0)
    expected = evaluate(model.policy, model.get_env(), N, max_steps=2)
    for other in (env, JaxVecEnv(env, 2), VecTransposeImage(JaxVecEnv(env, 2))):
        assert_equal(evaluate(model, other, N, max_steps=2), expected)


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: DummyVecEnv([lambda: Monitor(env)])])
def test_episodes_on_the_host_are_those_of_evaluate_policy(wrap):
    policy = policy_for("CartPole-v1")
    ours = evaluate(policy, wrap(gymnasium.make("CartPole-v1", max_episode_steps=9)), N, seed=3)
    venv = DummyVecEnv([lambda: Monitor(gymnasium.make("CartPole-v1", max_episode_steps=9))])
    venv.seed(3)
    returns, lengths = evaluate_policy(policy, venv, N, return_episode_rewards=True)
    np.testing.assert_array_equal(ours.returns, returns)
    np.testing.assert_array_equal(ours.lengths, lengths)
    np.testing.assert_array_equal(ours.truncated, ours.lengths == 9)


def test_on_the_host_the_statistics_of_the_training_normalise_and_stay():
    env = VecNormalize(sb3_make_vec_env("CartPole-v1", 2, seed=0))
    model = bridge.PPO("MlpPolicy", env, n_steps=8, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(16)
    mean = env.obs_rms.mean.copy()
    plain, normalized = sb3_make_vec_env("CartPole-v1", 1), VecNormalize(sb3_make_vec_env("CartPole-v1", 1))
    normalized.obs_rms = env.obs_rms
    np.testing.assert_array_equal(evaluate(model, plain, N).returns, evaluate(model, normalized, N).returns)
    np.testing.assert_array_equal(env.obs_rms.mean, mean)
    assert normalized.training


def test_something_else_is_refused():
    with pytest.raises(TypeError, match="a VecEnv or a Gymnasium environment, got a list"):
        evaluate(policy_for("CartPole-v1"), [], N)


def test_unknown_ids_are_refused():
    with pytest.raises(jaxenvs.UnknownEnvironment, match="Did you mean CartPole-v1"):
        evaluate(policy_for("CartPole-v1"), "CartPole-v9", N)


def test_episodes_without_a_limit_are_refused():
    with pytest.raises(ValueError, match=r"Counter has no TimeLimit.*max_steps"):
        evaluate(policy_for(Counter()), Counter(), N)


@pytest.mark.parametrize("wrong", [{"n_episodes": 0}, {"max_steps": -1}, {"max_lanes": 2.5}])
def test_numbers_that_are_not_positive_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} must be a positive int"):
        evaluate(policy_for("CartPole-v1"), "CartPole-v1", **{"n_episodes": N, **wrong})


@pytest.mark.parametrize(
    ("env", "what"),
    [
        ("Pendulum-v1", r"observations of Box.*\(2,\).*Pendulum gives"),
        (Counter(observation_kind="discrete"), "observations of Box.*Counter gives those of Discrete"),
        (Counter(action_kind="box"), r"actions of Discrete\(3\).*Counter takes those of Box"),
        (Counter(action_kind="discrete_from_5"), "Counter takes those of Discrete"),
    ],
    ids=["shape", "observations", "actions", "start"],
)
def test_a_policy_for_other_spaces_is_refused(env, what):
    with pytest.raises(ValueError, match=what):
        evaluate(policy_for(Counter()), env, N, max_steps=5)


def test_bounds_of_actions_may_be_wider_but_not_narrower_than_the_policys():
    policy = policy_for("Pendulum-v1")
    wider = jaxenvs.make("Pendulum-v1", max_torque=3.0)
    assert len(evaluate(policy, wider, N).returns) == N
    with pytest.raises(ValueError, match="Pendulum takes those of Box"):
        evaluate(policy, wider.replace(max_torque=1.0), N)
