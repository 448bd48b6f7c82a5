"""Effects of `import bridge` on the process, and models that train without them."""

import os

import pytest

from bridge import configuration
from tests.packaging.fresh_process import output, python


@pytest.mark.parametrize(
    ("ran", "dispatches", "chosen"), [(True, True, None), (True, False, None), (False, True, "1"), (False, True, None)]
)
def test_jax_runs_functions_in_the_calling_thread_unless_it_has_run_or_the_user_chose(
    ran, dispatches, chosen, monkeypatch, recwarn
):
    values = {"jax_cpu_enable_async_dispatch": dispatches}
    monkeypatch.setattr(configuration, "setting", values.get)
    monkeypatch.setattr(configuration.jax.config, "update", values.__setitem__)
    monkeypatch.setattr(configuration, "has_run", lambda: ran)
    monkeypatch.delenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", raising=False)
    if chosen is not None:
        monkeypatch.setenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", chosen)
    configuration.set_up_process()
    assert not recwarn
    # Set where it has an effect, and where the user has not.
    assert values["jax_cpu_enable_async_dispatch"] == (dispatches and (ran or chosen is not None))


# The tests' own cache of compiled functions, which `python` leaves out.
COMPILED_BEFORE = {name: value for name, value in os.environ.items() if name.startswith("JAX_")}
# What PyTorch does after models of each family were made, trained, saved, loaded and given parameters.
TRAIN = """
import sys, bridge, torch
plain = torch.optim.Optimizer.zero_grad.__wrapped__
with bridge.configuration.without_dynamo():
    del plain.__dynamo_disable  # as another thread does that ends being without it first
print(hasattr(plain, "__dynamo_disable"))
for cls, env, options in (bridge.PPO, "CartPole-v1", {"n_steps": 16, "batch_size": 16}), (
    bridge.SAC, "Pendulum-v1", {"learning_starts": 4, "policy_kwargs": {"net_arch": [8]}},
):
    model = cls("MlpPolicy", bridge.make_vec_env(env, 1), engine="xla", **options)
    model.learn(16)
    model.save(sys.argv[1])
    model.set_parameters(sys.argv[1])
    cls.load(sys.argv[1])
print("torch._dynamo" in sys.modules)
print(torch.compile(lambda x: 2 * x + 1, backend="eager")(torch.ones(1)).item())
weights = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.Adam([weights])
optimizer.zero_grad()
weights.sum().backward()
torch.compile(optimizer.step, backend="eager")()
print(round(weights.item(), 3), vars(plain)["__dynamo_disable"] is not plain, "torch._dynamo" in sys.modules)
"""


@pytest.mark.thorough
def test_models_do_without_dynamo_and_the_users_torch_compile_works_as_before(tmp_path):
    code = TRAIN.replace("sys.argv[1]", repr(str(tmp_path / "model")))
    assert output(python(code, **COMPILED_BEFORE))[0].split() == ["False", "False", "3.0", "0.999", "True", "True"]
