"""What `jaxenvs train` runs: one agent, several seeds in one program, or one agent over devices and hosts."""
