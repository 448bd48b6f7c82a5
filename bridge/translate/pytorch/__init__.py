"""PyTorch in JAX: modules, the operations that tracing finds in them, and optimisers."""
