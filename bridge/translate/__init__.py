"""Translation of PyTorch to JAX: operations, modules, optimizers, policies.

What has no translation, or may compute something else in JAX, raises NotCompilable with the reason.
"""
