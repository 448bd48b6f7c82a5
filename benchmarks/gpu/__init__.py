"""Tests and benchmarks of an NVIDIA GPU: python -m benchmarks.gpu.

This is a package, so that `make bench`, which runs the scripts of benchmarks/, leaves it to `make gpu`.
"""
