"""The errors that users of bridge catch."""


class NotCompilable(Exception):
    """Something that no program can do in the place of PyTorch and SB3. The message says what, in one sentence."""
