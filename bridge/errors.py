"""The errors that users of jaxenvs.sb3 catch."""


class NotCompilable(Exception):
    """Something has no compiled function that could replace PyTorch and SB3. The message says what, in one sentence."""

    __module__ = "jaxenvs.sb3"  # the public name, which tracebacks show


# Stable-Baselines3 fails in this case too.
POLICY_IS_NAN = (
    "The policy's action distribution is NaN, because its weights, the observation or a number computed from them "
    "is NaN."
)
