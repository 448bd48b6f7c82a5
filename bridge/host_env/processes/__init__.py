"""Gymnasium environments in workers: what the parent does, what runs in a worker, the memory between; processes."""
