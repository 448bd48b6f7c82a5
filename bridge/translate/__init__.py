"""PyTorch in JAX: operations, modules, optimisers, policies."""
