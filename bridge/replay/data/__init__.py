"""Uses of a stored replay: slices, priorities, files, offline data."""
