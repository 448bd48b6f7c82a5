"""The settings of tuned.toml, and those of a copy that a user changed."""

import re
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from types import SimpleNamespace

import pytest

from bridge.algorithms.specs import ALGORITHMS
from bridge.app import config, tuned
from bridge.app.config import TrainingConfig
from bridge.app.runs import make_env, make_model
from bridge.app.tuned import FILE, GAMES, TUNED, read, settings_for
from jaxenvs import cli
from jaxenvs.cli.user_errors import UserError
from tests.bridge.app.short_runs import TINY, error_of

ENV_IDS = {None: "CartPole-v1", "Discrete": "CartPole-v1", "Box": "Pendulum-v1"}


def written(folder, text, name="settings.toml"):
    path = folder / name
    path.write_text(text)
    return path


def test_algorithms_are_those_of_the_command():
    assert TUNED.keys() <= ALGORITHMS.keys()


def test_a_table_like_another_has_its_settings_but_for_its_own(tmp_path):
    path = written(
        tmp_path,
        '[sac."One-v0, Other-v0"]\nn_timesteps = 100\ngamma = 0.5\n'
        '[tqc.One-v0]\nlike = "sac.Other-v0"\ngamma = 0.9\n[tqc.Other-v0]\nlike = "tqc.One-v0"\n',
    )
    one = {"n_timesteps": 100, "gamma": 0.5}
    other = one | {"gamma": 0.9}
    assert read(path) == {"sac": {"One-v0": one, "Other-v0": one}, "tqc": {"One-v0": other, "Other-v0": other}}


def test_a_changed_copy_is_trained_with(tmp_path, capsys):
    text = FILE.read_text()
    path = written(tmp_path, re.sub(r"(?s)(\[ppo\.CartPole-v1\].*?gamma = )0\.98", r"\g<1>0.5", text, count=1))
    found = TrainingConfig.resolve("ppo", "CartPole-v1", hyperparams=path)
    assert found.hyperparameters["gamma"] == 0.5
    assert found.num_envs == 8
    command = ["train", "ppo", "CartPole-v1", *TINY, "--hyperparams", str(path), "--out"]
    cli.main([*command, str(tmp_path / "run")])
    assert '"gamma": 0.5' in (tmp_path / "run" / "config.json").read_text()
    message = error_of(capsys, "train", "--config", str(tmp_path / "run" / "config.json"), "--hyperparams", str(path))
    assert f"leave out --hyperparams {path}" in message


MISTAKES = {
    "settings.toml": {
        "gamma": "Cannot read settings from",
        "gamma = 0.5": "must hold only tables [algorithm.environment]",
        "[ppo]\ngamma = 0.5": "must hold only tables [algorithm.environment]",
        '[ppo.CartPole-v1]\nlike = "ppo.CartPole-v1"': "like must name an earlier table",
        '[ppo.CartPole-v1]\nlike = "ppo"': "like must name an earlier table",
        "[ppo.Acrobot-v1]\ngamma = 0.5": 'has no table [ppo."CartPole-v1"]',
        "[ppo.CartPole-v1]\ngama = 0.5": "Did you mean gamma",
        "[ppo.CartPole-v1]\ngamma = 2.0": "gamma must lie in [0, 1], got 2",
        "[ppo.CartPole-v1]\nn_envs = 0": "--num-envs must be a positive int, got 0",
    },
    "own.yml": {
        "- 1": "must hold settings below the id of each environment",
        "CartPole-v1: [": "Cannot read settings from",
        "Acrobot-v1: {n_steps: 8}": "has no settings for CartPole-v1",
        "CartPole-v1: {env_wrapper: x.Y}": "cannot use env_wrapper in",
        "CartPole-v1: {policy_kwargs: \"dict(a=open('x'))\"}": "cannot use policy_kwargs in",
        "CartPole-v1: {gama: 1}": "Did you mean gamma",
        "CartPole-v1: {1: 3}": "must hold settings by their names, got 1",
        "CartPole-v1: {n_timesteps: abc}": "--total-timesteps must be a positive int, got 'abc'",
        "CartPole-v1: {n_timesteps: .inf}": "--total-timesteps must be a positive int, got inf",
        "CartPole-v1: {n_timesteps: [3]}": "--total-timesteps must be a positive int, got [3]",
        "CartPole-v1: {n_envs: null}": "--num-envs must be a positive int, got None",
        "CartPole-v1: {n_envs: 2.5}": "--num-envs must be a positive int, got 2.5",
        "CartPole-v1: {env_kwargs: 3}": "env_kwargs must be parameters by their names, got int",
        "CartPole-v1: {normalize: \"dict(gamma='x')\"}": "gamma of normalize must be of type float, such as 0.99, got",
    },
}


@pytest.mark.parametrize(
    ("name", "text", "said"), [(name, *row) for name, rows in MISTAKES.items() for row in rows.items()]
)
def test_a_mistake_in_a_file_is_said(name, text, said, tmp_path):
    with pytest.raises(UserError, match=re.escape(said)):
        TrainingConfig.resolve("ppo", "CartPole-v1", hyperparams=written(tmp_path, text, name))


def test_what_vec_normalize_refuses_is_said(tmp_path):
    path = written(tmp_path, 'CartPole-v1: {normalize: "dict(foo=3)"}', "own.yml")
    with pytest.raises(UserError, match=r"normalize: .*unexpected keyword argument .foo"):
        make_env(TrainingConfig.resolve("ppo", "CartPole-v1", hyperparams=path))


def test_numbers_may_be_text_and_settings_may_be_null(tmp_path):
    path = written(tmp_path, "CartPole-v1: {n_timesteps: 1e3, n_steps: 25, policy: null, env_kwargs: null}", "own.yml")
    found = TrainingConfig.resolve("ppo", "CartPole-v1", hyperparams=path)
    assert (found.total_timesteps, found.num_envs, found.env_kwargs) == (1000, 1, {})


@pytest.mark.parametrize("name", ["absent.toml", "absent.yml"])
def test_a_file_that_is_absent_is_said(name, tmp_path):
    with pytest.raises(UserError, match="Cannot read settings from"):
        settings_for("ppo", "CartPole-v1", False, tmp_path / name)


def test_a_file_of_the_zoo_is_read_as_its_users_write_it(tmp_path):
    path = written(
        tmp_path,
        """
default: &own
  n_envs: 2
  n_timesteps: !!float 128
  policy: 'MlpPolicy'
  n_steps: 16
  learning_rate: lin_0.01
CartPole-v1:
  <<: *own
  normalize: "dict(norm_obs=True, norm_reward=False)"
  policy_kwargs: "dict(net_arch=dict(pi=[8], vf=[8]), activation_fn=nn.ReLU, log_std_init=-2)"
  env_kwargs: {gravity: 5.0}
""",
        "ppo.yml",
    )
    found = TrainingConfig.resolve("ppo", "CartPole-v1", hyperparams=path, env_kwargs={"cart_mass": 2.0})
    assert (found.num_envs, found.total_timesteps) == (2, 128)
    assert found.env_kwargs == {"gravity": 5.0, "cart_mass": 2.0}
    given = {name: found.hyperparameters[name] for name in ("n_steps", "learning_rate", "normalize")}
    assert given == {"n_steps": 16, "learning_rate": "lin_0.01", "normalize": {"norm_obs": True, "norm_reward": False}}
    model = make_model(found, make_env(found))
    assert [type(layer).__name__ for layer in model.policy.mlp_extractor.policy_net] == ["Linear", "ReLU"]
    assert model.get_env().norm_reward is False
    assert TrainingConfig.resolve("ppo", "Acrobot-v1", hyperparams=path).hyperparameters["n_steps"] == 16


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", TUNED)
def test_settings_are_those_of_an_installed_zoo(algorithm):
    if find_spec("rl_zoo3") is None or version("rl_zoo3") != "2.9.2":
        pytest.skip("needs the rl_zoo3 from which tuned.toml was written")
    defaults = TrainingConfig.resolve(algorithm, ENV_IDS[ALGORITHMS[algorithm].actions]).hyperparameters
    defaults = defaults | {"normalize": False, "n_envs": config.DEFAULT_NUM_ENVS_OFF_POLICY}
    defaults |= {name: each.default for name, each in signature(ALGORITHMS[algorithm].cls).parameters.items()}
    net_arch = {"policy_kwargs": {"net_arch": [400, 300]}} if algorithm in ("td3", "ddpg") else {}
    found = {env_id: settings_for(algorithm, env_id, env_id == GAMES, None) for env_id in TUNED[algorithm]}
    for env_id, settings in found.items():
        own = defaults | net_arch | TUNED[algorithm][env_id]
        assert {name: own[name] for name in settings} == settings, env_id


def test_what_the_zoo_has_besides_is_said_and_left_out(capsys, monkeypatch):
    row = {"env_wrapper": "x.Y", "gamma": 0.9, "n_timesteps": 1e3}
    monkeypatch.setattr(tuned, "read_yaml", lambda path: {"Own-v0": row})
    monkeypatch.setattr(tuned.importlib.util, "find_spec", lambda name: SimpleNamespace(origin=tuned.__file__))
    monkeypatch.setattr(tuned.Path, "exists", lambda path: True)
    assert settings_for("ppo", "Own-v0", False, None) == {"n_envs": 1, "gamma": 0.9, "n_timesteps": 1000}
    assert "also have env_wrapper, which jaxenvs train does not use: jaxenvs zoo train does" in capsys.readouterr().err


def test_help_says_where_the_settings_are(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert FILE.name in re.sub(r"[\s│]+", "", capsys.readouterr().out)
