"""What is made of a replay store: slices, priorities, files, offline data."""
