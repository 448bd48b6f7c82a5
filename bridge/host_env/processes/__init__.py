"""Gymnasium environments in workers: the parent's side, the worker's side, and the memory they share; processes."""
