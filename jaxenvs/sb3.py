"""`bridge` under a name that shows which project it is from: `from jaxenvs.sb3 import PPO` imports `bridge`'s class.

The objects are the same as in `bridge`, so that files written through one name can be read through the other. Import
its submodules from `bridge`: this name has none, because a second copy would have separate classes. Needs PyTorch and
Stable-Baselines3: `jaxenvs[sb3]`.
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
