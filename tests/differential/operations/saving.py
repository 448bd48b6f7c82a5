"""Operations that keep what a model has, in memory, in files or in another process's reach, and bring it back."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.differential import observing
from tests.differential.operations import writing
from tests.differential.settings import make, new_env, sizes
from tests.differential.user_classes import overriding

if TYPE_CHECKING:
    from tests.differential.running import Run


def keep(run: Run, model: Any, way: str) -> None:
    """Keep parameters: "copy" them, or keep the tensors that `get_parameters` gives ("same")."""
    parameters = model.get_parameters()
    kept = copy.deepcopy(parameters) if way == "copy" else parameters
    run.kept[way] = writing.kinds(model), kept


def restore(run: Run, model: Any, way: str) -> None:
    """Bring back what was kept."""
    kinds, kept = run.kept.get(way, (None, None))
    if kinds == writing.kinds(model):
        model.set_parameters(kept)


def hold(run: Run, model: Any, way: str) -> None:
    """Keep tensors that share the model's memory, to be looked at later: a "state_dict", or each "data".

    With "share", another process could read them.
    """
    if way == "share":
        model.policy.share_memory()
    if way == "data":
        run.held[way] = {name: parameter.data for name, parameter in model.policy.named_parameters()}
    else:
        run.held[way] = dict(model.policy.state_dict())


def look_at_held(run: Run, model: Any) -> None:
    """Note what the tensors hold that were kept."""
    for way, tensors in run.held.items():
        run.note(f"held.{way}", observing.plain(observing.unless_drawn(tensors, run.setting)))
        if way == "share":
            run.note("is shared", {name: tensor.is_shared() for name, tensor in tensors.items()})


def written(save: Callable[[io.BytesIO], None]) -> io.BytesIO:
    """Return the file that a method wrote, to be read from its beginning."""
    file = io.BytesIO()
    save(file)
    return io.BytesIO(file.getvalue())


def save(run: Run, model: Any) -> None:
    """Save the model; `travel` loads it."""
    if writing.has_own_optimizers(model):
        run.files.append(written(model.save).getvalue())


def read_back(run: Run, model: Any) -> None:
    """Save the model, load it as another, and look at that."""
    if writing.has_own_optimizers(model):
        look_at_loaded(run, type(model).load(written(model.save), device="cpu"))


def look_at_loaded(run: Run, loaded: Any) -> None:
    """Note what a model has that was loaded."""
    for what in ("weights", "moments", "progress"):
        run.note(what, observing.LOOKS[what](loaded, run.setting))


def travel(run: Run, model: Any, how: str, num_envs: int | None = None) -> None:
    """Save and load and go on with what was loaded.

    Args:
      how: by this library's class ("own"), by the other's and back ("other"), "pickle", "deepcopy", or load the
        last file of `save` ("saved").
      num_envs: of the environments to load with. None: without.
    """
    if how not in ("pickle", "deepcopy") and not writing.has_own_optimizers(model):
        return
    cls = type(model)
    for name in overriding.METHODS:  # put into this model, of which they are bound methods
        vars(model).pop(name, None)
    env = None if num_envs is None else new_env(run.setting, num_envs)
    changed = {} if num_envs is None else sizes(run.setting, num_envs)
    if how == "pickle":
        new = pickle.loads(pickle.dumps(model))
    elif how == "deepcopy":
        # After an update, SB3's policy has a distribution with its graph, of which PyTorch makes no copy.
        model.policy.predict(model.observation_space.sample())
        new = copy.deepcopy(model)
    elif how == "saved":
        if not run.files:
            return
        new = cls.load(io.BytesIO(run.files[-1]), env=env, device="cpu", **changed)
    else:
        file = written(model.save)
        if how == "other":
            file = written(run.theirs.load(file, device="cpu").save)
        new = cls.load(file, env=env, device="cpu", **changed)
    if how not in ("pickle", "deepcopy"):
        if env is None:
            new.set_env(model.get_env())
        run.give_logger(new)
    run.models[run.now] = new


def replay(run: Run, model: Any, how: str) -> None:
    """Save a replay buffer and load it: by this model, or by one of the "other" library and back."""
    if run.setting.is_on_policy:
        return
    file = written(model.save_replay_buffer)
    if how == "other":
        between = make(run.other, run.setting, 0)
        between.load_replay_buffer(file)
        file = written(between.save_replay_buffer)
    model.load_replay_buffer(file)


def read_replay(run: Run, model: Any) -> None:
    """Save a replay buffer, and look at what the file has."""
    if not run.setting.is_on_policy:
        run.note("buffer", observing.replayed(pickle.load(written(model.save_replay_buffer)), run.setting))


OPERATIONS = {
    "keep": keep,
    "restore": restore,
    "hold": hold,
    "held": look_at_held,
    "save": save,
    "read back": read_back,
    "travel": travel,
    "replay": replay,
    "read replay": read_replay,
}
