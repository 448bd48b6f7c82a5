"""Programs drawn at random, each from one number, so that it can be had again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.differential.running import Program
from tests.differential.settings import ALGORITHMS, ON_POLICY, OURS, Q_LEARNING, SIMBA, SOFT, Setting
from tests.differential.user_classes.overriding import METHODS, SPECIAL

# With few settings, of an algorithm each: what functions are compiled for is most of what they cost.
OBSERVATIONS = {
    **{"PPO": "box", "A2C": "discrete", "MaskablePPO": "box", "RecurrentPPO": "box", "PQN": "box"},
    "MaskableRecurrentPPO": "discrete",
    **{"DQN": "dict", "SAC": "box", "TD3": "discrete", "DDPG": "dict", "QRDQN": "box", "TQC": "dict", "CrossQ": "box"},
}
LOOKS = (
    "weights",
    "moments",
    "counters",
    "buffer",
    "sizes",
    "sample",
    "parameters",
    "predicted",
    "pending",
    "original",
)
# What methods in the way look at: the other numbers may be half of a step's.
NETWORKS = ("weights", "moments", "parameters", "progress")
SIGNALS = ("SIGUSR1", "SIGALRM")
# Kinds of observations that each is of some programs alone; where there is less to compile.
RARE = ("bytes", "image", "large", "parts")
WRAPPED = {
    "model": ("train", "collect_rollouts", "_on_step", "predict", "_update_info_buffer", "_update_learning_rate"),
    "buffer": ("add", "sample", "get", "reset", "compute_returns_and_advantage"),
    "env": ("step_wait", "step_async", "reset"),
    "policy": ("forward", "predict_values"),
    "logger": ("dump",),
}


# Of the methods of a class.
OWN_LOOP = ("collect_rollouts",)
PATCHED = ("train", "collect_rollouts", "predict", "_update_learning_rate", "_on_step")


def draw(number: int, envs: tuple[str, ...] = ("jax", "gymnasium"), few: bool = False) -> Program:
    """A program.

    Args:
      number: of the program.
      envs: of these environments.
      few: settings that share few compiled functions: one kind of observations and one optimiser for an algorithm, and
        no changes of what functions are compiled for.
    """
    drawer = Drawer(random.Random(number), number, envs, few)
    operations = [drawer.operation() for _ in range(drawer.random.randint(2, 8))]
    drawer.add(operations)
    return Program(drawer.setting, tuple(operations))


class Drawer:
    """Draws operations for one setting."""

    def __init__(self, source: random.Random, number: int, envs: tuple[str, ...], few: bool) -> None:
        self.random, self.few = source, few
        self.setting = self._setting(number, envs)

    def _setting(self, number: int, envs: tuple[str, ...]) -> Setting:
        pick, chance = self.random.choice, self._chance
        algorithms, number = (ALGORITHMS, number) if number >= 0 else ((*OURS, *SIMBA), -1 - number)
        algorithm = algorithms[number % len(algorithms)]
        exact = chance(0.6)
        settings: dict[str, Any] = {
            "algorithm": algorithm,
            "env": envs[number // len(algorithms) % len(envs)],
            "exact": exact,
            "length": pick([1, 2, 3, 5, 7]),
            "truncates": pick([0, 0, 1]),
            "rate": pick(["constant", "constant", "linear", "linear", "decaying"]),
            "logged": pick(["", "", "", "rows", "rows", "own"]),
        }
        if self.few:
            if settings["env"] == "jax":  # where a whole training is one compiled function
                settings["exact"] = exact = algorithm not in ("A2C", "DDPG")
            settings["observations"] = OBSERVATIONS[algorithm]
            settings["num_envs"] = 1 if exact else 2
            settings["frequency"] = "step" if exact else "third"
            if settings["env"] == "gymnasium" and algorithm != "CrossQ" and chance(0.15):
                settings["observations"] = pick(RARE)
        else:
            # CrossQ has no MultiInputPolicy.
            settings["observations"] = pick(["box", "box", "discrete", "box" if algorithm == "CrossQ" else "dict"])
            settings["num_envs"] = pick([1, 2])
            settings["frequency"] = pick(["step", "step", "third", "episode" if settings["num_envs"] == 1 else "third"])
            settings["noise"] = "" if algorithm in (*ON_POLICY, *Q_LEARNING) else pick(["", "", "", "normal", "own"])
            if algorithm != "CrossQ" and chance(0.15):
                settings["observations"] = pick(RARE if settings["env"] == "gymnasium" else ("bytes", "image"))
            settings["optimizer"] = pick(["adam", "adam", "sgd"])
            if (
                chance(0.1)
                and settings["observations"] == "box"
                and exact is False
                and algorithm in ("PPO", "A2C", *SOFT)
            ):
                settings["sde"] = True
            if chance(0.2) and settings["observations"] == "box":
                settings["wrapper"] = pick(["normalize", "monitor"])
        if algorithms is not ALGORITHMS and algorithm in SIMBA:
            settings |= {"networks": "simba", "observations": "box"}
        if algorithm == "A2C" and chance(1.0 if self.few else 0.5):
            settings["optimizer"] = ""
        if settings["observations"] == "box" and chance(0.1 if self.few else 0.2):
            settings["extractor"] = pick(["scaled", "running", "counting"])
        if self.few and settings["observations"] == "box" and algorithm in ("PPO", "SAC") and chance(0.1):
            settings["wrapper"] = "normalize"
        if not settings.get("wrapper") and chance(0.15):
            settings["wrapper"] = pick(["own"] if settings["env"] == "jax" else ["own", "aliasing", "aliasing"])
        if algorithm not in ON_POLICY and chance(0.1):
            settings["buffer"] = "own"
        if chance(0.3):
            settings["overrides"] = tuple(self._override(algorithm, exact) for _ in range(pick([1, 1, 2])))
        return Setting(**settings)

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _override(self, algorithm: str, exact: bool) -> tuple[Any, ...]:
        pick = self.random.choice
        if self._chance(0.3):
            special = [name for name in SPECIAL if algorithm not in ON_POLICY or name != "more reward"]
            return (pick(special),)
        doing = self._weights() if self._chance(0.5) else ()
        if doing and self._chance(0.3):
            doing = ("polyak", 1.0)
        method = pick(METHODS)
        return (method, *doing)

    # --- Operations -----------------------------------------------------------------------------------------------

    def operation(self) -> tuple[Any, ...]:
        drawn = {
            self._learn: 8,
            self._train: 2,
            self._write: 4,
            self._descend: 1,
            self._look: 3,
            self._travel: 3,
            self._kept: 2,
            self._env: 2,
            self._in_the_way: 2,
        }
        return self.random.choices(list(drawn), list(drawn.values()))[0]()

    def add(self, operations: list[tuple[Any, ...]]) -> None:
        """Add some on Gymnasium's environments: a new list of them, a wrapper that hides ends, what a step left.

        The rest of a program is what it was before there were these.
        """
        if self.setting.env != "gymnasium" or not self._chance(0.3):
            return
        pick = self.random.choice
        looks = [("step", call, ("look", "kept")) for call in self.random.sample(range(8), 2)]
        looks.append(("rollout end", 0, ("look", "kept")))
        watched = "learn", pick([8, 17]), True, (pick(["each", "every"]), pick([1, 3]), tuple(looks)), 4
        before = pick([("envs", pick([2, 5])), ("envs", pick([2, 5])), ("hide", pick([2, 5])), ("look", "kept")])
        place, quiet = self.random.randint(0, len(operations)), ("learn", 17, self._chance(0.5), None, 1)
        operations[place:place] = [before, pick([watched, quiet]), ("look", "counters", "kept")]

    def _learn(self) -> tuple[Any, ...]:
        pick = self.random.choice
        steps = pick([1, 3, 4, 8, 12, 17, 24])
        return "learn", steps, self._chance(0.6), self._callback(), pick([1, 1, 4, None])

    def _callback(self) -> Any:
        if self._chance(0.4):
            return None
        kinds = ["each", "each", "each", "every", "every", "list", "function", "eval", "episodes"]
        kinds += ["announced", "announced", "nested", "noop", "eval alone"]
        kind = self.random.choice(kinds)
        events = [event for _ in range(self.random.randint(0, 3)) for event in self._events(kind)]
        return kind, self.random.choice([1, 3, 5, 8]), tuple(events)

    def _events(self, kind: str) -> Iterator[tuple[Any, ...]]:
        """One or several operations in one call of a callback."""
        hooks = ["step", "step", "rollout start", "rollout start", "rollout end", "training start", "training end"]
        hook = "step" if kind in ("function", "every", "announced", "nested") else self.random.choice(hooks)
        call = 0 if hook.startswith("training") else self.random.choice([0, 1, 2, 3, 5, 7])
        for _ in range(self.random.choice([1, 1, 2, 3])):
            yield hook, call, self._called(hook)

    def _called(self, hook: str) -> tuple[Any, ...]:
        """An operation in a callback."""
        drawn = {self._look: 5, self._write: 5, self._descend: 2, self._train: 2, self._kept: 2, self._end: 1}
        operation = self.random.choices(list(drawn), list(drawn.values()))[0]()
        if operation[0] == "look" and hook == "step" and self._chance(0.4):
            return self.random.choice([("locals",), ("locals",), ("reward", 2.0)])
        if self.setting.is_on_policy and hook == "rollout end" and self._chance(0.2):
            return "returns", 1.0
        if operation[0] not in ("stop", "raise") and self._chance(0.1):
            return "signal", self.random.choice(SIGNALS), operation
        return operation

    def _end(self) -> tuple[Any, ...]:
        return (self.random.choice(["stop", "raise"]),)

    def _look(self) -> tuple[Any, ...]:
        return "look", *self.random.sample(LOOKS, self.random.randint(1, 3))

    def _train(self) -> tuple[Any, ...]:
        if self.few:  # as many as in training
            return "train", 1 if self.setting.frequency == "step" else 2
        return "train", self.random.choice([1, 2, 5])

    def _descend(self) -> tuple[Any, ...]:
        """A gradient step of the user's own."""
        if self._chance(0.4):
            return ("auxiliary",)
        return "descend", self.random.randint(0, 2), self.random.randint(0, 1)

    def _kept(self) -> tuple[Any, ...]:
        drawn: list[tuple[Any, ...]] = [("keep", "copy"), ("keep", "same"), ("restore", "copy"), ("restore", "same")]
        drawn += [("save",), ("read back",), ("held",)]
        drawn += [("hold", way) for way in ("state_dict", "data", "share")]
        return self.random.choice(drawn if self.setting.is_on_policy else [*drawn, ("read replay",)])

    def _env(self) -> tuple[Any, ...]:
        pick = self.random.choice
        if self.setting.wrapper and self._chance(0.5):
            return "inner", pick([2, 5])
        if self._chance(0.5):
            return pick([("turn",), ("turn",), ("share", "env"), ("share", "buffer")])
        num_envs = self.setting.num_envs if self._chance(0.8) else 3 - self.setting.num_envs
        return "set_env", num_envs, pick([2, 5]), self._chance(0.7)

    def _travel(self) -> tuple[Any, ...]:
        pick = self.random.choice
        if not self.setting.is_on_policy and self._chance(0.2):
            return "replay", pick(["own", "other"])
        how = pick(["own", "other", "pickle", "deepcopy", "saved"])
        # Noise for two environments stays so. With one, stock SB3 steps it once before it raises.
        with_other = how not in ("pickle", "deepcopy") and self._chance(0.3) and not (self.few or self.setting.noise)
        return ("travel", how, pick([1, 2])) if with_other else ("travel", how)

    def _in_the_way(self) -> tuple[Any, ...]:
        pick = self.random.choice
        drawn = [self._wrap, self._patch] + [self._play] * 2 * (
            self.setting.env == "gymnasium" or self.setting.wrapper == "own"
        )
        return pick(drawn)()

    def _wrap(self) -> tuple[Any, ...]:
        owner = self.random.choice(list(WRAPPED))
        wrapped = "wrap", owner, self.random.choice(WRAPPED[owner])
        operation = (self.random.choice([1, 2, 5]), self._inside()) if self._chance(0.5) else ()
        return *wrapped, *operation

    def _inside(self) -> tuple[Any, ...]:
        """An operation in a method or an environment of the user's."""
        drawn: list[Any] = [self._weights, self._weights, lambda: ("assign", self.random.randint(0, 3), "copies")]
        if not self.few or self.setting.env == "gymnasium":
            drawn += [lambda: ("freeze", self.random.randint(0, 3), False)]
            drawn += [lambda: ("replace", self.random.randint(0, 3), "layer")]
        if self.setting.exact:
            drawn += [lambda: ("rate", "groups", self.random.choice([0.0, 0.05]))]
        write = self._chance(0.4)
        operation = ("write", *self.random.choice(drawn)()) if write else ("look", self.random.choice(NETWORKS))
        return ("signal", self.random.choice(SIGNALS), operation) if self._chance(0.1) else operation

    def _patch(self) -> tuple[Any, ...]:
        doing = self._weights() if self._chance(0.5) else ()
        own_loop = ("collect as sb3",) in self.setting.overrides  # which calls SB3's class, patched or not
        method = self.random.choice([name for name in PATCHED if name not in OWN_LOOP * own_loop])
        return "patch", method, *doing

    def _play(self) -> tuple[Any, ...]:
        """An environment that holds the model."""
        pick = self.random.choice
        events = [
            (pick(["reset", "env step"]), pick([0, 1, 2, 3, 5, 8]), self._inside())
            for _ in range(self.random.randint(1, 3))
        ]
        return "play", tuple(events)

    def _write(self) -> tuple[Any, ...]:
        pick, net = self.random.choice, self.random.randint(0, 3)
        drawn = [
            self._weights,
            self._weights,
            self._weights,
            lambda: ("polyak", pick([0.5, 1.0])),
            lambda: ("moments", net, pick(["clear", "scale", "reload"])),
            lambda: ("setting", *self._changed()),
            lambda: ("setting", *self._changed()),
            self._stored,
            lambda: ("replace", net, pick(["copy", "policy", "both", "layer"])),
            lambda: ("assign", net, pick(["copies", "tied"])),
            lambda: ("move", pick(["to", "float", "train", "eval", "reload"])),
        ]
        if not self.few:
            drawn.append(lambda: ("optimizer", net, pick(["adam", "sgd", "rmsprop", "adagrad"])))
        if not self.few or self.setting.env == "gymnasium":  # where there is less to compile
            drawn.append(lambda: ("freeze", net, self._chance(0.4)))
        if self.setting.exact:
            drawn.append(
                lambda: ("rate", pick(["groups", "constant", "linear", "learning_rate"]), pick([0.0, 0.01, 0.05]))
            )
        if self.setting.extractor:
            drawn += [lambda: ("scale", pick([0.0, 0.5, 2.0]))] * 3
        if self.setting.env == "jax":
            # A replay buffer with one row of equal environments is what makes a program exact.
            are_equal = self.setting.exact and not self.setting.is_on_policy
            drawn.append(lambda: ("environments", "length", pick([2, 5]), None if are_equal else pick([None, 0])))
        return "write", *pick(drawn)()

    def _stored(self) -> tuple[Any, ...]:
        pick = self.random.choice
        if self.setting.is_on_policy:
            return "stored", pick(["advantages", "returns"]), pick([0.5, 2.0])
        if self._chance(0.2):
            return "cursor", pick(["pos", "reset"])
        name = pick(["rewards", "rewards", "observations", "next_observations", "dones"])
        return "stored", name, 1 if name != "rewards" else pick([0.5, 2.0])

    def _weights(self) -> tuple[Any, ...]:
        pick = self.random.choice
        how, number = pick(
            [("fill", 0.0), ("fill", 0.25), ("scale", 0.5), ("scale", -1.0), ("add", 0.1), ("clamp", 0.2)]
        )
        way = pick(["inplace", "inplace", "data", "state_dict", "set_parameters"])
        return "weights", self.random.randint(0, 3), way, how, number

    def _changed(self) -> tuple[str, Any]:
        pick = self.random.choice
        both: list[tuple[str, Any]] = [("gamma", pick([0.5, 0.99]))]
        if self.setting.is_on_policy:
            both += [("gae_lambda", 0.5), ("ent_coef", 0.1), ("vf_coef", pick([0.1, 1.0])), ("clip_range", 0.1)]
            both += [("max_grad_norm", pick([0.01, 10.0]))]
            if not self.few:
                both += [("clip_range_vf", 0.1), ("n_epochs", 1)]
        else:
            both += [("tau", pick([0.0, 0.1, 1.0])), ("target_update_interval", pick([1, 3]))]
            if not self.few:
                both += [("gradient_steps", pick([0, 1, 2, -1])), ("max_grad_norm", 0.01)]
                both += [("learning_starts", pick([0, 6])), ("policy_delay", 1)]
        return pick(both)
