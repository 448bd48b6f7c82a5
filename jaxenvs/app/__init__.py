"""The `jaxenvs` command. The one part of jaxenvs that uses `bridge`, and only where a command needs it."""
