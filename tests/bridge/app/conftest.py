"""Fixtures of the tests of the command."""

import pytest

from jaxenvs import cli
from tests.bridge.app.short_runs import OWN_ENVIRONMENT, TINY


@pytest.fixture(scope="module", autouse=True)
def few_evaluation_episodes():
    """An evaluation of a mountain car that has learnt nothing would take longer than all the tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridge.app.evaluation.N_EPISODES", 4)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short run."""
    out = tmp_path_factory.mktemp("runs") / "cartpole"
    cli.main(["train", "ppo", "CartPole-v1", *TINY, "--seed", "3", "--env-kwargs", "gravity=5.0", "--out", str(out)])
    return out


@pytest.fixture
def own_environment(tmp_path, monkeypatch, registries):
    """The name of a module in the current directory, which registers environments."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{tmp_path.name}"  # a module is imported once in a process
    (tmp_path / f"{name}.py").write_text(OWN_ENVIRONMENT.replace("{name}", name))
    return name
