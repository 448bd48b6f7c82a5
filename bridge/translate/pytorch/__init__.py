"""Translation of PyTorch to JAX: modules, the operations that tracing finds in them, and optimizers."""
