"""`bridge` under a name that says whose it is: `from jaxenvs.sb3 import PPO` gives the class of `bridge`.

The objects are those of `bridge`, so that what either name wrote, the other reads. Its modules are imported by its own
name: a second copy of them would have classes of its own. Needs PyTorch and Stable-Baselines3: `jaxenvs[sb3]`.
"""

from typing import Any

import bridge

if not hasattr(bridge, "JaxVecEnv"):
    raise ImportError(
        f"jaxenvs.sb3 needs the package `bridge` of jaxenvs, but `import bridge` finds {bridge.__file__}: rename that "
        "file, or start Python where that file is not on sys.path."
    )

from bridge import *  # noqa: F403
from bridge import __all__ as __all__
from bridge import __version__ as __version__


def __getattr__(name: str) -> Any:
    """What `bridge` imports when it is asked for: sb3-contrib's algorithms, `tune`."""
    if name.startswith("__"):  # with a `__path__`, `import jaxenvs.sb3.wrappers` would make that second copy
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(bridge, name)


def __dir__() -> list[str]:
    return dir(bridge)
