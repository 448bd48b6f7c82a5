"""The algorithms of Stable-Baselines3 and sb3-contrib that ours are compared with, by name."""

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
