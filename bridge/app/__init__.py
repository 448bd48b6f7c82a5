"""The commands `jaxenvs train`, `tune`, `evaluate` and `record`."""
