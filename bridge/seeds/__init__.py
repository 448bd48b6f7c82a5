"""Many seeds of one training as one program; and one training over many devices."""

from bridge.seeds.seed_sweep import SeedSweep
from bridge.seeds.train_seeds import train_seeds

__all__ = ["SeedSweep", "train_seeds"]
