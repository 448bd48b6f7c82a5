"""Write the pages that show benchmarks/results. The command is `python -m benchmarks.docs`.

These are docs/benchmarks.md with its plots, docs/benchmarks/tables.md and history.md, and README.md's figures.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.pages import history, plots, summary, tables
from benchmarks.pages.text import fill

CHECKOUT = Path(__file__).parent.parent
README = CHECKOUT / "README.md"
PAGES = {CHECKOUT / "docs" / "benchmarks.md": summary.page, CHECKOUT / "docs" / "benchmarks" / "tables.md": tables.page}
# Names in the records, and what the pages show instead.
SHOWN = {"bridge/app/": "", "bridge": "jaxenvs.sb3", "not shown": "undecided"}
BEGIN, END = "<!-- speed: python -m benchmarks.docs -->\n", "<!-- end of speed -->\n"


def write() -> None:
    """Write the pages, draw the plots, and replace what stands between README's two marks."""
    results = read()
    for path, page in PAGES.items():
        path.write_text(page(results))
    (CHECKOUT / "docs" / "benchmarks" / "history.md").write_text(history.page())
    plots.write(results)
    README.write_text(with_table(README.read_text(), results))


def read() -> dict[str, Any]:
    """Return the results of every benchmark that has run, by name."""
    results = {path.stem: json.loads(_text(path)) for path in sorted(RESULTS.glob("*.json"))}
    return results | {"gpu": in_tables(_text(RESULTS / "gpu.jsonl").splitlines())}


def _text(path: Path) -> str:
    text = path.read_text()
    for name, shown in SHOWN.items():
        text = text.replace(name, shown)
    return text


def in_tables(lines: list[str]) -> dict[str, Any]:
    """Return the rows of the last run of `benchmarks.gpu` in tables. Its first row has its machine."""
    result: dict[str, Any] = {}
    for row in map(json.loads, lines):
        table = row.pop("table")
        if "machine" in row:
            result = row | {"tables": {}, "bars": []}
        else:
            result["tables"].setdefault(table, []).append(row)
    return result


def with_table(readme: str, results: dict[str, Any]) -> str:
    """Return the text of README.md with the current figures."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + short(results) + END + after


def short(results: dict[str, Any]) -> str:
    """Return what README.md says about speed."""
    stock, on_gymnasium, ours = (row["seconds"] for row in summary.lunar_lander_rows(results))
    machine = results["lunar_lander"]["machine"]
    steps, seeds = (results["lunar_lander"]["settings"][name] for name in ("total_timesteps", "seeds"))
    plot = (
        f"The plot shows whole trainings with imports and compilation, on {machine['cores']} cores of an "
        f"{machine['cpu']}: {steps:,} steps, {seeds} seed{'s' if seeds > 1 else ''}. SB3 takes {stock:.0f} s, and "
        f"`jaxenvs.sb3` takes {ours:.0f} s, because its LunarLander is in JAX. With Gymnasium's LunarLander, whose "
        f"Box2D takes most of the time, `jaxenvs.sb3` takes {on_gymnasium:.0f} s."
    )
    return "\n" + "\n\n".join(map(fill, (plot, _median(results), _OTHERS))) + "\n\n"


_OTHERS = (
    "[Others are ahead](docs/benchmarks.md#where-others-are-ahead) in some cases. SB3 needs less memory, and starts "
    "its first iteration sooner, because it compiles nothing. SBX trains SAC and TD3 faster on Gymnasium environments. "
    "EnvPool's own loop steps EnvPool's environments faster. With 32,768 environments on a GPU, rejax trains PPO 1.04 "
    "times as fast."
)


def _median(results: dict[str, Any]) -> str:
    """Return how much faster all scripts become by the change of the import."""
    table = results["never_slower"]
    cells = table["tables"]["cells"]
    times = {kind: [row["times"] for row in cells if kind in row["cell"]] for kind in ("", "MlpPolicy", "CnnPolicy")}
    every, mlp, cnn = (f"{statistics.median(each):.2g}" for each in times.values())
    return (
        f"We changed only the import in {len(cells)} scripts. On {table['machine']['cores']} CPU cores they became "
        f"{every}x faster in the median: {mlp}x with MLP policies, up to {max(times['']):.0f}x with a small network on "
        f"JAX environments, and {cnn}x with CNNs, where PyTorch still runs the convolutions. "
        f"{summary.earlier(table)}"
    )


if __name__ == "__main__":
    write()
