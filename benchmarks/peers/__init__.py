"""Other libraries' trainings, each in a process of its own (and, where its pins ask for it, an environment of its own).

`worker` is what such a process does, `client` what the benchmark does with it.
"""
