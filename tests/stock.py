"""The algorithms that ours are held against, by their names: Stable-Baselines3's and sb3-contrib's."""

import types

import sb3_contrib
import stable_baselines3

STOCK = types.SimpleNamespace(
    **{
        name: getattr(package, name)
        for package in (sb3_contrib, stable_baselines3)
        for name in package.__all__
        if isinstance(getattr(package, name), type)
    }
)
