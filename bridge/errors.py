"""The errors that users of bridge catch."""


class NotCompilable(Exception):
    """Something that no program can do in the place of PyTorch and SB3. The message says what, in one sentence."""


# At which Stable-Baselines3 fails too.
POLICY_IS_NAN = (
    "The policy's action distribution is NaN, because its weights, the observation or a number computed from them "
    "is NaN."
)
