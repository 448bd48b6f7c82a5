"""The plots of docs/benchmarks.md: small SVGs that can be read on a light page and on a dark one.

Each plot contains its figures as JSON, so that a test can compare them with the current results without drawing.
"""

from __future__ import annotations

import json
import re
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import figures

FOLDER = Path(__file__).parent.parent.parent / "docs" / "benchmarks"
GREY = "#7f8288"  # as far from white as from the dark page
COLOURS = {
    "jaxenvs.sb3": "#3b82f6",
    "jaxenvs": "#8b5cf6",
    "stock SB3": "#9ca3af",
    "Stable-Baselines3": "#9ca3af",
    "SBX": "#10b981",
}
LIGHT_BLUE = "#93c0fb"  # jaxenvs.sb3 on Gymnasium environments
OTHERS = ("#f59e0b", "#ef6c57", "#d4a72c", "#e879a6")
SOLVED = 200  # the reward threshold of LunarLander-v3
STYLE = {
    "svg.hashsalt": "jaxenvs",
    "svg.fonttype": "none",  # text stays text: small, and in the reader's own font
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "savefig.transparent": True,
}


def write(results: dict[str, Any], folder: Path = FOLDER) -> None:
    """Draw all plots into the folder."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, data in shown_by(results).items():
            drawn = _PLOTS[name][1](data)
            metadata = {"Date": None, "Creator": None, "Description": json.dumps(data)}
            drawn.savefig(folder / f"{name}.svg", metadata=metadata, bbox_inches="tight")


def shown_by(results: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of each plot."""
    return {name: take(results) for name, (take, _) in _PLOTS.items()}


def shown(path: Path) -> Any:
    """Return the figures that a plot contains, as JSON has them."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(), re.DOTALL)
    return json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")) if found else None


def _figure(height: float, columns: int = 1, heights: Sequence[float] = (1,)) -> Any:
    """Create a figure and its axes, narrow enough to be readable on a phone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, height), layout="constrained")
    return figure, figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights).ravel()


def _legend(figure: Any, ax: Any) -> None:
    """Put the legend above the axes, where there are no points."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=10, handlelength=1.2, columnspacing=1.2)


def _times(ax: Any) -> None:
    """Let the axis show how many times as fast something is."""
    ax.axvline(1, color=GREY, linewidth=1, linestyle="--")
    ax.set_xscale("log")
    ax.set_xticks([1, 2, 5, 10, 20], ["as fast", "2x", "5x", "10x", "20x"])
    ax.minorticks_off()


def _colour(side: str, others: Sequence[str] = ()) -> str:
    if side.startswith("jaxenvs.sb3") and "Gymnasium" in side:
        return LIGHT_BLUE
    for name, colour in COLOURS.items():
        if side.startswith(name):
            return colour
    return OTHERS[others.index(side) % len(OTHERS)] if side in others else OTHERS[0]


def _lunar_lander(data: dict[str, list[list[list[float]]]]) -> Any:
    """Draw a line for each seed. The legend has the median seconds of each side."""
    figure, (ax,) = _figure(3.4)
    figure.set_figwidth(5.5)
    for side, curves in data.items():
        seconds = statistics.median(curve[-1][0] for curve in curves)
        for curve, label in zip(curves, (f"{side}: {seconds:,.0f} s", *(None for _ in curves))):
            ax.plot(*zip(*curve), color=_colour(side), linewidth=2, label=label)
    ax.axhline(SOLVED, color=GREY, linewidth=1, linestyle="--")
    ax.annotate("solved", (1, SOLVED), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=9)
    ax.set_xlim(left=0)
    ax.grid(axis="y")
    ax.set_ylabel("return")
    ax.set_xlabel("seconds since the start of the script", loc="right")
    figure.legend(loc="outside upper left", fontsize=10, handlelength=1.2)
    return figure


def _training(data: dict[str, dict[str, float]]) -> Any:
    heights = [len(sides) for sides in data.values()]
    figure, axes = _figure(0.3 + 0.4 * len(data) + 0.25 * sum(heights), heights=heights)
    for ax, (setting, sides) in zip(axes, data.items()):
        names = sorted(sides, key=sides.__getitem__)
        bars = ax.barh(names, [sides[name] for name in names], 0.7, color=[_colour(name) for name in names])
        ax.bar_label(bars, fmt=lambda value: f"{value:.3g}", padding=3, color=GREY)
        ax.set_title(setting, loc="right", fontsize=10)
        ax.set_xticks([])
        ax.set_ylim(-0.6, len(names) - 0.4)
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(length=0, labelsize=10)
    axes[-1].set_xlabel("thousand steps per second", loc="right")
    return figure


def _imports(data: dict[str, dict[str, list[float]]]) -> Any:
    figure, (ax,) = _figure(0.9 + 0.45 * len(data))
    kinds_of = (("MLP", 0.14, "o", COLOURS["jaxenvs.sb3"]), ("CNN or MultiInput", -0.14, "s", OTHERS[0]))
    for kind, shift, marker, colour in kinds_of:
        points = [(times, -index + shift) for index, kinds in enumerate(data.values()) for times in kinds[kind]]
        ax.scatter(*zip(*points), marker=marker, s=26, alpha=0.65, color=colour, linewidths=0, label=f"{kind} policy")
    _times(ax)
    ax.set_yticks([-index for index in range(len(data))], list(data))
    ax.grid(axis="x")
    ax.set_xlabel("steps per second, beside the same script with SB3", loc="right")
    _legend(figure, ax)
    return figure


def _off_policy(data: dict[str, dict[str, float]]) -> Any:
    """Draw speeds relative to stock SB3, as SAC makes a hundred steps per second and DQN thousands."""
    sides = list(dict.fromkeys(side for cell in data.values() for side in cell if side != "stock SB3"))
    figure, (ax,) = _figure(0.9 + 0.27 * len(sides) * len(data))
    height = 0.8 / len(sides)
    for side in sides:
        where, has = [], []
        for index, cell in enumerate(data.values()):
            shown = [each for each in sides if each in cell]  # without a gap for a side that has no bar here
            if side in shown:
                where.append(-index + height * ((len(shown) - 1) / 2 - shown.index(side)))
                has.append(cell[side] / cell["stock SB3"] - 1)
        bars = ax.barh(where, has, height, left=1, color=_colour(side), label=side)
        ax.bar_label(bars, [f"{more + 1:.3g}x" for more in has], padding=3, color=GREY, fontsize=9)
    _times(ax)
    labels = [textwrap.fill(name.replace(" env", "\N{NO-BREAK SPACE}env"), 26) for name in data]
    ax.set_yticks([-index for index in range(len(data))], labels, fontsize=9)
    ax.set_ylim(-len(data) + 0.5, 0.5)
    ax.set_xlabel("steps per second, beside stock SB3 on Gymnasium environments", loc="right")
    _legend(figure, ax)
    return figure


def _learning(data: dict[str, dict[str, dict[str, Any]]]) -> Any:
    figure, (returns, seconds) = _figure(1.2 + 0.4 * len(data), columns=2)
    returns.axvspan(-5, 5, color=GREY, alpha=0.2, linewidth=0)
    for ax in (returns, seconds):
        ax.grid(axis="x")
        ax.tick_params(axis="x", labelsize=9)
        ax.set_ylim(-len(data) + 0.4, 0.6)
    for side, shift in (("jaxenvs.sb3", 0.15), ("jaxenvs.sb3 on Gymnasium", -0.15), ("stock SB3", 0.15)):
        rows = [(sides[side], -index + shift) for index, sides in enumerate(data.values()) if side in sides]
        colour = _colour(side)
        for row, where in rows:
            if "difference" in row:
                difference, low, high = row["difference"]
                returns.plot([low, high], [where, where], color=colour, linewidth=1.5)
                returns.scatter(difference, where, s=30, color=colour, zorder=2)
        points = [(row["CPU seconds"], where) for row, where in rows if "CPU seconds" in row]
        seconds.scatter(*zip(*points), s=30, color=colour, label=side)
    returns.set_xlabel("difference from\nSB3's return [%]", fontsize=9)
    returns.set_xticks([-50, 0, 50])
    returns.set_yticks(
        [-index for index in range(len(data))], [name.replace(" ", "\n", 1) for name in data], fontsize=8
    )
    seconds.set_xlabel("CPU seconds of\na whole training", fontsize=9)
    seconds.set_xscale("log")
    seconds.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
    seconds.minorticks_off()
    seconds.set_yticks([])
    _legend(figure, seconds)
    return figure


def _stepping(data: dict[str, dict[str, dict[int, float]]]) -> Any:
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = _figure(7, heights=[1] * len(data))
    for ax, (way, sides) in zip(axes, data.items()):
        others = [side for side in sides if not side.startswith(tuple(COLOURS))]
        for side, speeds in sides.items():
            colour = COLOURS["jaxenvs.sb3"] if side == "JaxVecEnv" else _colour(side, others)
            ax.plot(list(map(int, speeds)), list(speeds.values()), marker="o", color=colour, label=side)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(NullLocator())
        nums_envs = sorted({int(number) for speeds in sides.values() for number in speeds})
        ax.set_xticks(nums_envs, [f"{number:,}" for number in nums_envs])
        ax.set_ylabel("million steps per second")
        ax.grid(axis="y")
        above = {"loc": "lower left", "bbox_to_anchor": (-0.15, 1), "alignment": "left", "ncols": 2}
        ax.legend(title=way, title_fontsize=11, fontsize=9, handlelength=1.2, columnspacing=1.2, **above)
    axes[-1].set_xlabel("environments", loc="right")
    return figure


# By the name of a plot: what it shows of the results, and what draws that.
_PLOTS = {
    "lunar-lander": (figures.lunar_lander, _lunar_lander),
    "training": (figures.training, _training),
    "imports": (figures.imports, _imports),
    "off-policy": (figures.off_policy, _off_policy),
    "learning": (figures.learning, _learning),
    "stepping": (figures.stepping, _stepping),
}
