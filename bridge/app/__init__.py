"""The commands `jaxenvs train`, `evaluate` and `record`."""
