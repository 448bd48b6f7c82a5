"""Training with many seeds in one compiled function, or one training divided over many devices."""

from bridge.seeds.seed_sweep import SeedSweep
from bridge.seeds.train_seeds import train_seeds

__all__ = ["SeedSweep", "train_seeds"]
