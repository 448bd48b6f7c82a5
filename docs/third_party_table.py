"""Write the tables of docs/environments/other-libraries.md: which ids of other libraries pass `check_env`.

    python docs/third_party_table.py [LIBRARY ...] [--minutes 10]

Each library is checked in a separate process. Each id has at most `--minutes`, because some compile for long. Sections
of libraries that are not named do not change.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "environments" / "other-libraries.md"

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from jaxenvs.registry import LIBRARIES  # noqa: E402
from tests.third_party.episodes import SKIPPED  # noqa: E402


def check(library: str, after: str) -> None:
    """Print a JSON line before and after each id that follows `after`."""
    import jaxenvs

    for env_id in jaxenvs.third_party.ids(library):
        if env_id <= after:
            continue
        print(json.dumps({"id": env_id}), flush=True)
        why = SKIPPED.get(env_id, "")
        result = "skipped" if why else "passes"
        if not why:
            try:
                env = jaxenvs.make(env_id)
                jaxenvs.check_env(env)
                why = f"{env.observation_space.__class__.__name__}, {env.action_space.__class__.__name__}"
            except Exception as error:
                result, why = "fails", f"{type(error).__name__}: {error}"
        print(json.dumps({"id": env_id, "result": result, "why": why}), flush=True)


def rows(library: str, minutes: float) -> list[dict[str, str]]:
    """Return the result of each id. If one takes too long, its process is killed, and another continues after it."""
    found: list[dict[str, str]] = []
    after = ""
    while True:
        command = [sys.executable, "-W", "ignore", __file__, library, "--check-after", after]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        try:
            while (line := lines.get(timeout=60 * minutes)) is not None:
                if line.startswith('{"id"'):
                    row = json.loads(line)
                    after = row["id"]
                    if "result" in row:
                        found.append(row)
                        print(row, flush=True)
            if process.wait() == 0:
                return found
            why = f"the process ended with {process.returncode}"
        except queue.Empty:
            process.kill()
            process.wait()
            why = f"not compiled within {minutes:g} minutes"
        if not after or (found and found[-1]["id"] == after):
            raise SystemExit(f"{library}: {why} after {after or 'its start'}")
        found.append({"id": after, "result": "skipped", "why": why})
        print(found[-1], flush=True)


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def section(library: str, found: list[dict[str, str]]) -> str:
    passed = sum(row["result"] == "passes" for row in found)
    text = f"### {library} {importlib.metadata.version(library)}\n\n{passed} of {len(found)} pass.\n\n"
    text += "| id | `check_env` | observation and action space, or the reason |\n|---|---|---|\n"
    for row in found:
        why = " ".join(row["why"].split()).replace("|", "/")
        text += f"| `{row['id']}` | {row['result']} | {why if len(why) <= 160 else why[:157] + '...'} |\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", default=list(LIBRARIES))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--check-after", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check_after is not None:
        check(options.libraries[0], options.check_after)
        return
    for library in options.libraries:
        write(library, section(library, rows(library, options.minutes)))


def write(library: str, text: str) -> None:
    """Put a section into the page, replacing the earlier one, if there is one."""
    first, last = f"<!-- {library} -->", f"<!-- /{library} -->"
    page = PAGE.read_text(encoding="utf-8")
    before, found, rest = page.partition(first)
    after = rest.partition(last)[2] if found else "\n"
    PAGE.write_text(f"{before.rstrip()}\n\n{first}\n{text}{last}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
