"""Run `python -m jaxenvs.cli`, where the command `jaxenvs` is not installed."""

from jaxenvs.cli import main

main()
