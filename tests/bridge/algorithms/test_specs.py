"""Each algorithm has one row, which agrees with its class."""

import inspect

import pytest

import bridge
from bridge.algorithms.common.off_policy_algorithm import CompiledOffPolicyAlgorithm
from bridge.algorithms.common.on_policy_algorithm import CompiledOnPolicyAlgorithm
from bridge.algorithms.specs import SB3, SPECS
from bridge.engine.user_code.overrides import is_ours
from jaxenvs import learn


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_row_agrees_with_its_class(spec):
    cls = spec.cls
    assert getattr(bridge, spec.name) is cls
    assert is_ours(cls)
    assert cls.__module__ == spec.module
    assert issubclass(cls, CompiledOffPolicyAlgorithm if spec.is_off_policy else CompiledOnPolicyAlgorithm)
    assert spec.imported[0] is cls
    assert all(
        issubclass(cls, stock) and stock.__module__.startswith(spec.stock or spec.library)
        for stock in spec.imported[1:]
    )
    assert f"Mlp{spec.policy_kind}Policy" in cls.policy_aliases


def test_every_algorithm_has_a_row():
    concrete = {each for each in vars(learn).values() if isinstance(each, type) and issubclass(each, learn.Settings)}
    bases = {learn.Settings, learn.OnPolicySettings, learn.MinibatchSettings, learn.OffPolicySettings}
    assert {spec.settings for spec in SPECS.values()} == concrete - bases
    made = {
        name for name in bridge.__all__ if inspect.isclass(getattr(bridge, name)) and is_ours(getattr(bridge, name))
    }
    assert made == {name for name, spec in SPECS.items() if spec.library == SB3}
