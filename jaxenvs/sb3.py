"""Stable-Baselines3 with compiled training: `from jaxenvs.sb3 import PPO`, not `from stable_baselines3 import PPO`.

The package `bridge` has the same objects under its older name, so files written through one name can be read through
the other. Import submodules from `bridge`: this name has none, because a second copy would have separate classes. Needs
PyTorch and Stable-Baselines3: `jaxenvs[sb3]`.
"""

from typing import TYPE_CHECKING, Any

import bridge

if "JaxVecEnv" not in getattr(bridge, "__all__", ()):
    raise ImportError(
        f"jaxenvs.sb3 needs the package `bridge` of jaxenvs, but `import bridge` finds {bridge.__file__}: rename that "
        "file, or start Python where that file is not on sys.path."
    )

if TYPE_CHECKING:
    from bridge import *  # noqa: F403
from bridge import __all__ as __all__
from bridge import __version__ as __version__


def __getattr__(name: str) -> Any:
    """Return what `bridge` has under this name, which it imports now."""
    if name.startswith("__"):  # with a `__path__`, `import jaxenvs.sb3.wrappers` would make that second copy
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(bridge, name)


def __dir__() -> list[str]:
    return dir(bridge)
