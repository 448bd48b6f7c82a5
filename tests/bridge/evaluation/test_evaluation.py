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
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import bridge
import jaxenvs
from bridge import JaxVecEnv, make_vec_env
from bridge.errors import NotCompilable
from bridge.evaluation import Evaluation, evaluate
from bridge.evaluation.compiled_episodes import compiled_function
from jaxenvs import Environment, TimeLimit, TimeStep, VectorEnv, environment, struct
from jaxenvs.wrappers import SelfPlay
from tests.bridge.episodes import assert_equal, of_sb3, policy_for
from tests.environments import Counter
from tests.games import TicTacToe

N = 6


def constant_policy(env, numbers, **settings):
    """One that gives the distribution of these numbers, whatever it sees."""
    policy = ActorCriticPolicy(env.observation_space, env.action_space, lambda _: 1e-3, net_arch=[8], **settings)
    with torch.no_grad():
        policy.mlp_extractor.policy_net[0].weight.zero_()
        policy.mlp_extractor.policy_net[0].bias.fill_(1.0)
        policy.action_net.weight.zero_()
        policy.action_net.bias.copy_(torch.tensor(numbers))
    return policy


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


# --- The numbers --------------------------------------------------------------------------------------------------


@pytest.mark.thorough(but=["Pendulum-v1"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_episodes_are_those_of_evaluate_policy(env_id):
    policy = policy_for(env_id)
    returns, lengths = of_sb3(policy, make_vec_env(env_id, N, seed=3))
    result = evaluate(policy, env_id, N, seed=3)
    np.testing.assert_array_equal(result.lengths, lengths)
    np.testing.assert_allclose(result.returns, returns, rtol=1e-4)
    assert np.ptp(returns) > 10


@pytest.mark.thorough
def test_dict_observations_are_those_of_evaluate_policy():
    env = Counter(observation_kind="dict", action_kind="box")
    inner = dict(env.observation_space.spaces)
    inner["image"] = spaces.Box(0, 255, (1, 36, 36), np.uint8)
    torch.manual_seed(0)
    policy = MultiInputActorCriticPolicy(spaces.Dict(inner), env.action_space, lambda _: 1e-3, net_arch=[8])
    returns, _ = of_sb3(policy, JaxVecEnv(env, N, seed=0))
    np.testing.assert_allclose(evaluate(policy, env, N, max_steps=10).returns, returns, rtol=1e-4)


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_results_do_not_depend_on_how_many_episodes_run_at_once():
    run = functools.partial(evaluate, policy_for("CartPole-v1"), "CartPole-v1", 7, deterministic=False)
    assert_equal(run(max_envs=3), run())


@pytest.mark.thorough
def test_episode_i_has_the_seed_plus_i():
    policy = policy_for("CartPole-v1")
    np.testing.assert_array_equal(
        evaluate(policy, "CartPole-v1", N, seed=-2).lengths[2:], evaluate(policy, "CartPole-v1", N, seed=0).lengths[:-2]
    )


def test_summary_is_mean_and_population_deviation():
    flags = np.zeros(2, bool)
    result = Evaluation(np.array([1.0, 4.0]), np.array([1, 2]), flags, flags)
    assert (result.mean, result.std, str(result)) == (2.5, 1.5, "2.50 ± 1.50 over 2 episodes")


# --- Where episodes end -------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_it_tells_who_ended_an_episode():
    policy = policy_for(Counter())
    assert ends(evaluate(policy, Counter(), N, max_steps=5)) == {(5, True, False)}
    assert ends(evaluate(policy, TimeLimit(Counter(), 4), N)) == {(4, False, True)}
    assert ends(evaluate(policy, TimeLimit(Counter(), 5), N)) == {(5, True, True)}


def test_episodes_that_go_on_after_max_steps_count_as_truncated():
    assert ends(evaluate(policy_for(Counter()), Counter(), N, max_steps=3)) == {(3, False, True)}


# --- Drawn actions ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_drawn_actions_are_reproduced_by_the_seed():
    policy = policy_for("Pendulum-v1")
    drawn = [evaluate(policy, "Pendulum-v1", N, deterministic=False, seed=seed).returns for seed in (0, 0, 100)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.isclose(drawn[0], drawn[2]).any()
    assert not np.isclose(drawn[0], evaluate(policy, "Pendulum-v1", N).returns).any()


@pytest.mark.thorough
def test_actions_are_drawn_from_the_distribution_anew_in_each_step_and_environment():
    probabilities = np.array([0.2, 0.3, 0.5])
    policy = constant_policy(Counter(), np.log(probabilities))
    result = evaluate(policy, Counter(), 4000, deterministic=False, max_steps=5)
    mean = 5 * probabilities @ np.arange(3)
    variance = 5 * probabilities @ np.arange(3) ** 2 - mean**2 / 5
    assert result.mean == pytest.approx(mean, abs=4 * np.sqrt(variance / 4000))
    assert result.std == pytest.approx(np.sqrt(variance), rel=0.05)


@pytest.mark.thorough
def test_state_dependent_exploration_keeps_its_matrix_for_an_episode():
    env = Counter(action_kind="box")
    policy = constant_policy(env, [0.0, 0.0], use_sde=True, log_std_init=-2.0)
    first_step, episode = (evaluate(policy, env, N, deterministic=False, max_steps=steps) for steps in (1, 5))
    np.testing.assert_allclose(episode.returns, 5 * first_step.returns, rtol=1e-5)
    assert len(set(first_step.returns)) == N


# --- Models and environments --------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_model_and_its_policy_give_the_same_and_stay_as_they_are():
    model = stable_baselines3.A2C("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), seed=0)
    model.policy.set_training_mode(True)
    model.env.reset()
    state = model.env.get_state()
    assert_equal(evaluate(model, model.env, N), evaluate(model.policy, "CartPole-v1", N))
    assert model.policy.training
    after = model.env.get_state()
    assert all(np.array_equal(after[name], array) for name, array in state.items())


@pytest.mark.thorough
def test_environments_of_all_kinds_give_the_same(tmp_path):
    policy, env = policy_for("CartPole-v1"), jaxenvs.make("CartPole-v1")
    expected = evaluate(policy, "CartPole-v1", N)
    monitored = make_vec_env(env, 2, monitor_dir=str(tmp_path))
    for same in (env, VectorEnv(env, 2), JaxVecEnv(env, 3), monitored):
        assert_equal(evaluate(policy, same, N), expected)


def test_parameters_of_environments_are_shared_out_among_the_episodes():
    env = JaxVecEnv(Counter(), 3)
    env.set_attr("length", 2, indices=[1])
    result = evaluate(policy_for(Counter()), env, 7, max_steps=10, max_envs=4)
    assert result.lengths.tolist() == [5, 2, 5, 5, 2, 5, 5]


# --- Compiled once ------------------------------------------------------------------------------------------------


def test_other_weights_seeds_limits_and_physics_do_not_compile_again():
    policy, env = copy.deepcopy(policy_for("Pendulum-v1")), jaxenvs.make("Pendulum-v1")
    first = evaluate(policy, env, N)
    with torch.no_grad():
        policy.action_net.weight.mul_(2.0)
    count = compiled_function()._cache_size()
    second = evaluate(policy, env.replace(gravity=9.0), N, seed=7, max_steps=100)
    assert compiled_function()._cache_size() == count
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
        (lambda: policy_for(Counter(), OwnPredict), "OwnPredict overrides predict"),
        (lambda: OwnDQN("MlpPolicy", "CartPole-v1", buffer_size=1), "OwnDQN overrides predict"),
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
        ({"max_steps": -1}, "max_steps must be a positive int, got -1"),
        ({"max_envs": 2.5}, "max_envs must be a positive int, got 2.5"),
        ({"env": []}, "a VecEnv or a Gymnasium environment, got a list"),
        ({"env": "CartPole-v9"}, "Did you mean CartPole-v1"),
        ({"max_steps": None}, r"Counter has no TimeLimit.*max_steps"),
    ],
    ids=str,
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises((TypeError, ValueError, jaxenvs.UnknownEnvironment), match=message):
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
    with pytest.raises(ValueError, match=f"{what} of .* (are|contain) NaN"):
        evaluate(policy, env, N, max_steps=5)


def test_other_numbers_of_episodes_compile_nothing():
    policy = policy_for(Counter())
    evaluate(policy, Counter(), 9, max_steps=5)
    before = compiled_function()._cache_size()
    assert len(evaluate(policy, Counter(), 13, max_steps=5).returns) == 13
    assert compiled_function()._cache_size() == before


def test_a_model_trained_on_normalised_observations_warns_without_them(tmp_path):
    model = bridge.PPO("MlpPolicy", VecNormalize(JaxVecEnv(Counter(), 2)), n_steps=8, batch_size=16, seed=0)
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="trained on observations normalized by a VecNormalize"):
        evaluate(bridge.PPO.load(tmp_path / "model"), Counter(), N, max_steps=5)


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
    model = stable_baselines3.PPO("MlpPolicy", env, n_steps=8, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(
        16
    )
    mean = env.obs_rms.mean.copy()
    plain, normalized = sb3_make_vec_env("CartPole-v1", 1), VecNormalize(sb3_make_vec_env("CartPole-v1", 1))
    normalized.obs_rms = env.obs_rms
    np.testing.assert_array_equal(evaluate(model, plain, N).returns, evaluate(model, normalized, N).returns)
    np.testing.assert_array_equal(env.obs_rms.mean, mean)
    assert normalized.training


@pytest.mark.parametrize(
    ("env", "what"),
    [
        ("Pendulum-v1", r"observations of Box.*\(2,\).*Pendulum has"),
        (Counter(observation_kind="discrete"), "observations of Box.*Counter has Discrete"),
        (Counter(action_kind="box"), r"actions of Discrete\(3\).*Counter has Box"),
        (Counter(action_kind="discrete_from_5"), "Counter has Discrete"),
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
    with pytest.raises(ValueError, match="Pendulum has Box"):
        evaluate(policy, wider.replace(max_torque=1.0), N)


def test_a_game_needs_an_opponent(tmp_path):
    env = SelfPlay(TicTacToe())
    model = bridge.MaskablePPO("MlpPolicy", bridge.JaxVecEnv(env, 2), n_steps=8, batch_size=8, device="cpu")
    for game in (TicTacToe(), VectorEnv(TicTacToe(), 2)):
        with pytest.raises(ValueError, match="TicTacToe is a game of 2 players, so it needs an opponent"):
            bridge.evaluate(model, game, 2, max_steps=9)
        with pytest.raises(ValueError, match="TicTacToe is a game of 2 players, so it needs an opponent"):
            bridge.record(model, tmp_path / "film.gif", game)
    assert len(bridge.evaluate(model, env, 2, max_steps=9).returns) == 2
