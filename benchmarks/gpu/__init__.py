"""Tests and figures of a machine with an NVIDIA GPU: python -m benchmarks.gpu. A package, so that `make bench`, which
runs the scripts of benchmarks/, leaves it to `make gpu`."""
