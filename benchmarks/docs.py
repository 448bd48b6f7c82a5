"""Write the pages that show benchmarks/results. The command is `python -m benchmarks.docs`.

These are docs/benchmarks.md with its plots, docs/benchmarks/tables.md and history.md, and the short table of README.md.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, markdown
from benchmarks.pages import history, plots, summary, tables
from benchmarks.pages.text import fastest, fill

CHECKOUT = Path(__file__).parent.parent
README = CHECKOUT / "README.md"
PAGES = {CHECKOUT / "docs" / "benchmarks.md": summary.page, CHECKOUT / "docs" / "benchmarks" / "tables.md": tables.page}
# Names in the records, and what the pages show instead.
SHOWN = {"bridge/app/": "", "bridge": "jaxenvs.sb3", "not shown": "undecided"}
BEGIN, END = "<!-- speed: python -m benchmarks.docs -->\n", "<!-- end of speed -->\n"


def write() -> None:
    """Write the pages, draw the plots, and put README's table in place of that between the two marks."""
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
    """Return the text of README.md with the current table."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + short(results) + END + after


def short(results: dict[str, Any]) -> str:
    """Return the short table: a row for each task, with the fastest of each kind."""
    machine = results["training"]["machine"]
    rows = summary.training_rows(results)
    for num_envs in (8, 1024):
        steps = [row for row in results["stepping"]["tables"]["vec_env"] if row["num_envs"] == num_envs]
        speeds = fastest([{**row, "side": row["vec_env"]} for row in steps])
        envpool = speeds.get("EnvPool adapter")
        rows.append(
            {
                "thousand steps per second": f"`VecEnv.step` of {num_envs} environments, NumPy out",
                "`jaxenvs.sb3`": speeds["JaxVecEnv"],
                "Stable-Baselines3": speeds["DummyVecEnv with Monitor"],
                "fastest other": f"{envpool:.3g} (EnvPool)" if envpool else None,
            }
        )
    where = f"Measured on {machine['cores']} cores of an {machine['cpu']}, without the time to compile."
    what = "[Benchmarks](docs/benchmarks.md) has more figures, how they were measured, and where others are faster."
    gpu = results["gpu"]["machine"]["gpu"]
    text = f"{where} [Some figures](docs/benchmarks/tables.md#on-a-gpu) were measured on a GPU too ({gpu}). {what}"
    return f"\n{fill(_median(results))}\n\n{fill(text)}\n\n{markdown(rows)}\n\n"


def _median(results: dict[str, Any]) -> str:
    """Return how much faster all scripts become by the change of the import, of which the table shows the fast ones."""
    cells = results["never_slower"]["tables"]["cells"]
    times = {kind: [row["times"] for row in cells if kind in row["cell"]] for kind in ("", "MlpPolicy", "CnnPolicy")}
    every, mlp, cnn = (f"{statistics.median(each):.2g}" for each in times.values())
    return (
        f"Over {len(cells)} benchmark scripts in which only the import changed, the median speedup is {every}x on a "
        f"2-core CPU: {mlp}x with MLP policies (up to {max(times['']):.0f}x), {cnn}x with CNN policies, whose "
        "convolutions PyTorch still runs. The table shows PPO on CartPole-v1, where the gain is large."
    )


if __name__ == "__main__":
    write()
