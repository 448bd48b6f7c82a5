"""Names that stood for terms of SB3, Gymnasium and optax do not come back in `bridge/`, in code or prose."""

import re

import pytest

import bridge
from tests.packaging.installed import CHECKOUT

# What to write instead. The first pattern also finds parts of names, as in `lane_keys` or `AllLanesVecEnv`.
RETIRED = {
    r"(?<![A-Za-z])lanes?(?![a-z])|Lanes?(?![a-z])": "env_indices, num_envs or env_states, whichever it is",
    r"(?<![A-Za-z.])(chain|Chain)\b(?!\.from_iterable)": "wrapped_env",
    r"(?<![A-Za-z])programs?(?![a-z])|Programs?(?![a-z])|PROGRAM": "compiled function",
    r"is_watched|quiet_steps|QuietCallback": "steps_until_needed",
    r"\btold\b": "report, info",
    r"\brecalled\b": "lstm_states",
    r"\blen[dt]\b|\btake_ring\b": "to_device, on the device, to_host",
    r"\b(goes|going)_on\b": "can_continue",
    r"\b(Ran|Taken|Block)\b": "StepBatch, FinalState",
    r"\b[Jj]udg": "evaluate",
}
# Names of `jaxenvs`, and words in their usual sense.
ALLOWED = r"optax chain|outside (of )?the program"


def retired_in(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for pattern, better in RETIRED.items():
            for found in re.finditer(pattern, re.sub(ALLOWED, "", line)):
                yield f"{path.relative_to(CHECKOUT)}:{number}: {found[0]!r}: write {better}"


@pytest.mark.thorough
def test_retired_names_do_not_come_back():
    paths = sorted((CHECKOUT / "bridge").rglob("*.py"))
    found = [each for path in paths for each in retired_in(path)]
    found += [str(path) for path in paths for pattern in RETIRED if re.search(pattern, path.stem)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["JaxVecEnv", "SerialVecEnv", "ProcessVecEnv", "GymVecEnv", "NativeVecEnv"])
def test_environments_show_their_public_name(name):
    cls = getattr(bridge, name)
    venv = cls.__new__(cls)
    venv.num_envs = 2
    assert repr(venv) == f"<{name}, num_envs=2>"


def test_models_and_errors_show_their_public_name():
    model = bridge.A2C("MlpPolicy", "CartPole-v1", _init_setup_model=False)
    assert repr(model) == "<A2C, num_timesteps=0>"
    errors = (bridge.NotCompilable, bridge.WorkerError, bridge.WorkerDied)
    assert {error.__module__ for error in errors} == {"jaxenvs.sb3"}
