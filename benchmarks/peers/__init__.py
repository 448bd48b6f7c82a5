"""Trainings of other libraries, each in a separate process (and in a separate environment, if its pins require that).

`worker` runs in such a process, and `client` in the benchmark.
"""
