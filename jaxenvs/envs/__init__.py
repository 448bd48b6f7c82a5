"""The environments: a folder for each suite, a file for each environment."""
