"""What an import brings along, and what it says when something is missing."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bridge


def python(code, folder=None):
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


HEAVY = "{'torch', 'stable_baselines3', 'matplotlib', 'pandas', 'PIL'}"
# Code, and the lines that it prints.
PRINTED = {
    "jaxenvs imports neither torch nor SB3 nor matplotlib": (
        f"import jaxenvs, sys; print(sorted({HEAVY} & set(sys.modules)))",
        ["[]"],
    ),
    "the adapter of another library is imported when it is asked for": (
        "import jaxenvs.third_party as package, sys\n"
        "files = lambda: [name for name in package.__all__ if f'{package.__name__}.{name[5:]}' in sys.modules]\n"
        "before = files()\n"
        "from jaxenvs.third_party import from_brax\n"
        "print(before, files(), from_brax.__name__, hasattr(package, 'from_nobody'))",
        ["[] ['from_brax'] from_brax False"],
    ),
    "jaxenvs works without torch and SB3": (
        "import sys; sys.modules['torch'] = sys.modules['stable_baselines3'] = None\n"
        "import jax, jaxenvs\n"
        "state, timestep = jaxenvs.make_vec('CartPole-v1', 2).reset(jax.random.key(0))\n"
        "print(timestep.observation.shape)",
        ["(2, 4)"],
    ),
    "the algorithms of sb3-contrib are imported when they are asked for": (
        "import bridge, sys\n"
        "before = 'sb3_contrib' in sys.modules\n"
        "from bridge import QRDQN\n"
        "print(before, QRDQN.__mro__[-1], 'QRDQN' in dir(bridge), hasattr(bridge, 'Nobody'))",
        ["False <class 'object'> True False"],
    ),
    "import bridge imports what a name needs when it is asked for": (
        "import bridge, sys\n"
        "print(sorted(name for name in sys.modules if name.startswith(('bridge.', 'jaxenvs.learn', 'optax'))))\n"
        "print(bridge.checkpoint.read_metadata.__name__, bridge.PPO.__module__, hasattr(bridge, 'Nobody'))\n"
        "print(all(hasattr(bridge, name) for name in bridge.__all__), set(bridge.__all__) <= set(dir(bridge)))",
        [
            "['bridge.configuration', 'bridge.libraries', 'bridge.originals']",
            "read_metadata bridge.algorithms.ppo False",
            "True True",
        ],
    ),
    "the garbage collector is left as it was": (
        "import gc\n"
        "gc.disable()\n"
        "import bridge; bridge.dlpack; bridge.to_jax; bridge.make_vec_env\n"
        "print(gc.isenabled())",
        ["False"],
    ),
    "the garbage collector is left on": (
        "import bridge, gc; bridge.dlpack; bridge.to_jax; bridge.make_vec_env; print(gc.isenabled())",
        ["True"],
    ),
    "methods replaced right after import bridge are noticed": (
        # By a mock, which does not tell whose it is.
        "import bridge, stable_baselines3, torch\n"
        "from unittest.mock import Mock\n"
        "torch.nn.Linear.forward = stable_baselines3.PPO.train = bridge.JaxVecEnv.step_wait = Mock()\n"
        "from bridge.originals import replaced\n"
        "print(replaced(torch.nn.Linear), replaced(bridge.PPO), replaced(bridge.JaxVecEnv), replaced(bridge.A2C))",
        ["('forward',) ('train',) ('step_wait',) ()"],
    ),
    "methods replaced before bridge remembers a class are noticed": (
        # Modules that are imported by themselves, and stand-ins that are no functions.
        "import functools\n"
        "from unittest.mock import Mock\n"
        "from bridge.replay.replay_buffer import ReplayBuffer\n"
        "from bridge.vec_env.jax_vec_env import JaxVecEnv\n"
        "class Callable:\n    def __call__(self): pass\n"
        "def mine(): pass\n"
        "JaxVecEnv.step_wait, JaxVecEnv.reset = Mock(), Callable()\n"
        "ReplayBuffer.sample = functools.partial(mine)\n"
        "import bridge\n"
        "bridge.PPO, bridge.JaxVecEnv, bridge.ReplayBuffer\n"
        "from bridge.originals import replaced\n"
        "print(sorted(replaced(JaxVecEnv)), replaced(ReplayBuffer), replaced(bridge.PPO), replaced(bridge.SAC))",
        ["['reset', 'step_wait'] ('sample',) () ()"],
    ),
    "bridge runs JAX in the calling thread": (
        "import bridge, jax; print(jax.config.read('jax_cpu_enable_async_dispatch'))",
        ["False"],
    ),
    "bridge runs JAX as a user's variable says": (
        "import os; os.environ['JAX_CPU_ENABLE_ASYNC_DISPATCH'] = 'true'\n"
        "import bridge, jax; print(jax.config.read('jax_cpu_enable_async_dispatch'))",
        ["True"],
    ),
    "jaxenvs.sb3 has the objects of bridge": (
        "import bridge, jaxenvs.sb3, pickle\n"
        "from jaxenvs.sb3 import *\n"
        "from jaxenvs.sb3 import CrossQ\n"
        "same = [getattr(jaxenvs.sb3, name) is getattr(bridge, name) for name in dir(bridge) if name[:2] != '__']\n"
        "print(all(same), len(same) > 40, PPO is bridge.PPO, CrossQ is bridge.CrossQ)\n"
        "print(dir(jaxenvs.sb3) == dir(bridge), hasattr(jaxenvs.sb3, 'Nothing'))\n"
        "print(pickle.dumps(PPO) == pickle.dumps(bridge.PPO))",
        ["True True True True", "True False", "True"],
    ),
    "every name of the package has its version": (
        "import bridge, jaxenvs, jaxenvs.sb3\n"
        "print(len({module.__version__ for module in (bridge, jaxenvs, jaxenvs.sb3)}))",
        ["1"],
    ),
}


@pytest.mark.thorough(but=[*PRINTED][:3])
@pytest.mark.parametrize("name", PRINTED)
def test_an_import_does_what_it_should(name):
    code, lines = PRINTED[name]
    result = python(code)
    assert result.stdout.splitlines() == lines, result.stderr


@pytest.mark.parametrize(("name", "missing"), [("bridge", "torch"), ("jaxenvs.sb3", "stable_baselines3")])
def test_bridge_says_which_extra_is_missing(name, missing):
    result = python(f"import sys; sys.modules['{missing}'] = None\nimport {name}")
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: jaxenvs.sb3 needs PyTorch and Stable-Baselines3")
    assert f"{missing} is not installed" in last
    assert 'pip install "jaxenvs[sb3]"' in last


@pytest.mark.thorough
def test_without_sb3_contrib_bridge_works_but_for_its_algorithms_which_say_what_to_install():
    result = python(
        "import sys; sys.modules['sb3_contrib'] = None\n"
        "import bridge\n"
        "bridge.PPO\n"
        "for name in bridge.CONTRIB:\n"
        "    try:\n"
        "        getattr(bridge, name)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    said = result.stdout.strip().splitlines()
    assert said, result.stderr
    for line in said:
        assert re.fullmatch(
            r"jaxenvs\.sb3\.\w+ needs sb3-contrib, but sb3_contrib is not installed: "
            r'pip install "jaxenvs\[contrib\]"\.',
            line,
        )


def test_type_checkers_see_the_algorithms_of_sb3_contrib_where_they_are_imported_from():
    stub = ast.parse(Path(bridge.__file__).with_suffix(".pyi").read_text())
    (block,) = (node for node in stub.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == {name: spec.module for name, spec in bridge.CONTRIB.items()}


@pytest.mark.thorough
def test_jaxenvs_sb3_is_no_package():
    assert "'jaxenvs.sb3' is not a package" in python("import jaxenvs.sb3.wrappers").stderr


def test_another_bridge_in_the_way_is_named(tmp_path):
    (tmp_path / "bridge.py").write_text("")
    result = python("import jaxenvs.sb3", folder=tmp_path)
    assert f"`import bridge` finds {tmp_path / 'bridge.py'}" in result.stderr


NOT_EVERYWHERE = """
import importlib, os, sys, warnings
warnings.simplefilter("ignore")

def imported(names):
    for name in names:
        try:
            importlib.import_module(name)
            yield name
        except ImportError as error:  # of a library that is not installed
            print(name, error, file=sys.stderr)

names = list(imported(sys.argv[1:]))  # with all libraries, for which the system is what it is
for name in [name for name in sys.modules if name.split(".")[0] in ("jaxenvs", "bridge")]:
    del sys.modules[name]
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "getuid", "killpg", "memfd_create", "register_at_fork", "sched_getaffinity", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)

def refuse(event, arguments):
    if event == "open" and str(arguments[0]).startswith("/proc"):
        raise ImportError(f"{arguments[0]} is read")

sys.addaudithook(refuse)
print(len(names), sorted({*names} - {*imported(names)}))
"""


@pytest.mark.thorough
def test_no_import_needs_what_windows_or_macos_lack():
    root = Path(bridge.__file__).parent.parent
    files = [path for package in ("jaxenvs", "bridge") for path in sorted((root / package).rglob("*.py"))]
    names = [".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in files]
    names = [name for name in names if not name.endswith("__main__")]
    result = subprocess.run([sys.executable, "-c", NOT_EVERYWHERE, *names], capture_output=True, text=True)
    number, _, failed = result.stdout.strip().partition(" ")
    assert failed == "[]", result.stderr
    assert int(number) > 250
