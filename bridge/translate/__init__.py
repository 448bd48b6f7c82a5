"""Translation of PyTorch to JAX: operations, modules, optimizers, policies."""
