"""What trainings earned: read from where they left it, and drawn."""

from bridge.results.plotting import plot_results

__all__ = ["plot_results"]
