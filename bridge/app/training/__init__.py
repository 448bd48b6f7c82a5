"""Training runs of `jaxenvs train`: one agent, several seeds compiled together, or one agent over devices and hosts."""
