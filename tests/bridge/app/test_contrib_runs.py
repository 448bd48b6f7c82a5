"""`jaxenvs train`, `evaluate`, `record` of MaskablePPO and RecurrentPPO: with what is legal, and what is remembered."""

import pytest

from jaxenvs import cli
from tests.tiers import tiered

SMALL = ["--num-envs", "2", "--total-timesteps", "64", "--hyperparameters", "n_steps=16", "n_epochs=1"]
RUNS = {
    "recurrent_ppo": ("CartPole-v1", "policy_kwargs={'lstm_hidden_size':8}"),
    "maskable_ppo": ("Taxi-v4", "policy_kwargs={'net_arch':[8]}"),
}


@pytest.mark.parametrize("algorithm", tiered(RUNS, "maskable_ppo"))
def test_a_film_shows_the_first_episode_of_the_evaluation(algorithm, tmp_path, capsys):
    env_id, policy_kwargs = RUNS[algorithm]
    run, film = tmp_path / "run", tmp_path / "film.gif"
    cli.main(["train", algorithm, env_id, *SMALL, policy_kwargs, "--out", str(run)])
    capsys.readouterr()
    cli.main(["evaluate", str(run), "--episodes", "1"])
    gained = capsys.readouterr().out.split(": ")[1].split(" ")[0]
    cli.main(["record", str(run), "--out", str(film)])
    assert capsys.readouterr().out == f"Wrote {film}: return {gained}\n"
