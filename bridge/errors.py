"""The errors that users of bridge catch."""


class NotCompilable(Exception):
    """Something that no program can do in the place of PyTorch and SB3. The message says what, in one sentence."""


# At which Stable-Baselines3 fails too.
POLICY_IS_NAN = (
    "The policy gave a distribution of NaN: its weights, the observation or what it computes from them is NaN."
)
