"""Many seeds of one training as one program; and one training over many devices."""

from bridge.seeds.mesh_training import MeshTraining
from bridge.seeds.seed_sweep import SeedSweep
from bridge.seeds.train_seeds import train_seeds

__all__ = ["MeshTraining", "SeedSweep", "train_seeds"]
