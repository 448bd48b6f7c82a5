"""Gymnasium environments in processes of their own: what the parent does, what runs in a worker, the memory between."""
