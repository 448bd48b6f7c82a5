"""Environments of other JAX libraries, under the contract of ours: `jaxenvs.make("brax/ant")`.

A file for each library; the library is imported when one of its environments is made.
"""

from jaxenvs.foreign.base import ForeignEnvironment, ForeignState

__all__ = ["ForeignEnvironment", "ForeignState"]
