"""Scripts that compare this project with its peers. From the root of the repository: `python -m benchmarks.NAME`."""
