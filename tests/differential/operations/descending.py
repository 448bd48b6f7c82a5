"""Operations that take gradient steps of a user's own, by the optimisers of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.differential.environments import two_observations
from tests.differential.operations import writing

if TYPE_CHECKING:
    from tests.differential.running import Run


def parts(run: Run, model: Any, number: int, part: int) -> None:
    """A step on some parameters of an optimiser alone: the others have no gradient, and their counts stay.

    Args:
      number: of the optimiser.
      part: of each two parameters, which one.
    """
    found = list(writing.optimizers(model).values())
    optimizer = found[number % len(found)]
    names = {id(parameter): name for name, parameter in model.policy.named_parameters()}
    parameters = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and not any(certain in names.get(id(parameter), "") for certain in writing.CERTAIN)
    ]
    if parameters[part % 2 :: 2]:
        _descend(optimizer, sum((parameter**2).sum() for parameter in parameters[part % 2 :: 2]))


def auxiliary(run: Run, model: Any) -> None:
    """A step by a loss of one's own, of what one network says about two observations."""
    policy = model.policy
    policy.set_training_mode(False)  # as layers with running statistics would learn from them
    observations, _ = policy.obs_to_tensor(two_observations(run.setting.observations))
    if hasattr(policy, "lstm_actor"):
        return
    if run.setting.is_on_policy:
        _descend(policy.optimizer, (policy.predict_values(observations) ** 2).mean())
    elif hasattr(model, "actor"):
        given = {"deterministic": True} if hasattr(model.actor, "log_std") else {}
        _descend(model.actor.optimizer, (model.actor(observations, **given) ** 2).mean())
    else:
        network = writing.network(model, 0)
        _descend(policy.optimizer, (network(observations) ** 2).mean())


def _descend(optimizer: Any, loss: Any) -> None:
    if loss.requires_grad:  # which it does not if all of it is frozen
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


OPERATIONS = {"descend": parts, "auxiliary": auxiliary}
