"""Learning curves: read from the results of trainings, and drawn."""

from bridge.results.plotting import plot_results

__all__ = ["plot_results"]
