"""The search for hyper-parameters: `jaxenvs tune` and `bridge.tune`."""
