"""The plan prints each reason of docs/not-compiled.md for its code, and runs no forward that it refuses."""

import importlib.util
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import jaxenvs
from bridge import JaxVecEnv, make_vec_env
from bridge.engine.plan import Mode
from bridge.errors import NotCompilable
from bridge.translate.policies.on_policy import export_policy

IMPORTS = """
import builtins, collections, copy, enum, functools, io, itertools, os, random, time, types
import gymnasium, numpy as np, torch
from bridge import A2C, DQN, PPO, SAC, TD3, RecurrentPPO
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.distributions import make_proba_distribution
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, MlpExtractor
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from stable_baselines3.sac.policies import SACPolicy
from torch import nn
from torch.nn import functional as F
"""
PAGE = Path("docs/not-compiled.md").read_text()
TABLE = re.compile(r"\| reason \| code( in `forward`)? \|\n(.*?)(?:\n\n|\n$)", re.DOTALL)
IMPURE = "The code is not known to be pure: line … of page.py, …, "


def read_rows():
    """Return for each code: its section, whether it is of a forward, the reason as a pattern, and the code."""
    rows = []
    for section in PAGE.split("\n## ")[1:]:
        begin = IMPURE if "is not pure" in section else ""
        for is_forward, table in TABLE.findall(section):
            for reason, codes in re.findall(r"^\| (.+?) \| (`.+`) \|$", table, re.MULTILINE):
                pattern = re.escape(begin + reason).replace("…", ".+")
                rows += [(section, is_forward, pattern, code) for code in re.findall("`(.+?)`(?:, |$)", codes)]
    return rows


ROWS = read_rows()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A module of the classes of the page, and of a function for each code of a forward."""
    text = IMPORTS + re.search(r"```py\n(.*?)```", PAGE, re.DOTALL)[1]
    for number, (_, is_forward, _, code) in enumerate(ROWS):
        if is_forward:
            lines = [f"\ndef row_{number}(self, x):", *code.split("; "), "return self.linear(x)\n"]
            text += "\n    ".join(lines)
    path = tmp_path_factory.mktemp("page") / "page.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def state_of(page, features):
    """Return all that a forward of the page could change, and the generators of random numbers."""
    generators = random.getstate(), np.random.get_state(), torch.get_rng_state(), features.random.getstate()  # noqa: NPY002
    generators += page.DRAWS.bit_generator.state, features.generator.bit_generator.state
    objects = map(vars, (features, features.config, features.objects[0], features.parts[0], type(features)))
    return repr([*generators, *objects, page.COUNT, page.SEEN, hasattr(page, "LATER"), features.linear.weight])


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[code for *_, code in ROWS])
def test_the_plan_prints_the_reason(number, page):
    section, is_forward, pattern, code = ROWS[number]
    env, pendulum = make_vec_env("CartPole-v1", 2), make_vec_env("Pendulum-v1", 2)
    names = vars(page) | {"env": env, "pendulum": pendulum, "bits": JaxVecEnv(jaxenvs.make("BitFlipping-v0"), 2)}
    if is_forward:
        cls = type("Custom", (page.Extractor,), {"forward": getattr(page, f"row_{number}")})
        model = page.PPO("MlpPolicy", env, policy_kwargs={"features_extractor_class": cls})
        before = state_of(page, model.policy.features_extractor)
    else:
        names["model"] = page.PPO("MlpPolicy", env)
        exec(code.replace("; ", "\n"), names)
        model = names["model"]
    plan = model.plan
    assert any(re.fullmatch(f"not compiled: {pattern}", line) for line in str(plan).splitlines()), str(plan)
    if section.startswith("The policy"):
        assert (plan.mode, plan.updates) == (Mode.SB3, False)
    elif section.startswith("Updates"):
        assert (plan.mode is Mode.SB3, plan.updates) == (False, False)
    else:
        assert (plan.mode, plan.updates) == (Mode.ACTING, True)
    if is_forward and section.startswith("The policy"):
        with pytest.raises(NotCompilable, match=pattern):
            export_policy(model.policy)
    if is_forward:
        assert state_of(page, model.policy.features_extractor) == before
