"""Run beside a process of a training over many hosts: passes on what that says on stderr, and has the last word.

JAX ends a process whose peers are lost from a thread of its own, at once: nothing in that process can say any more
which was lost, and from where to go on. Only Python's own library here, as nothing of it should take time or memory.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import Any

# Before what is for here, in JSON, and not for the screen.
TOLD = b"\0"
# How JAX says that processes send no heartbeats any more, and that the first one, its coordinator, cannot be reached.
UNHEALTHY = re.compile(r"unhealthy \(stopped sending heartbeats\)[:\s]*((?:\S*task:)?\d+(?:[,\s]+\S*task:\d+|, *\d+)*)")
LEADER = re.compile(r"Failed to send RPC to coordination service|leader task")
PEER = re.compile(r"(?:closed|reset) by peer|Gloo|connection to (?:the )?peer", re.IGNORECASE)


def main() -> None:
    # Those are for the process beside: this one ends with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    told: dict[str, Any] = {"checkpoint": None, "ended": False}
    said: list[str] = []
    for whole in sys.stdin.buffer:
        line, is_told, facts = whole.partition(TOLD)
        if is_told:
            told |= json.loads(facts)
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
        said = [*said[-200:], line.decode(errors="replace")]
    if not told["ended"]:
        print(last_words(told, "".join(said)), file=sys.stderr, flush=True)


def last_words(told: dict[str, Any], said: str) -> str:
    """What there is to say when the process has ended without saying so.

    Args:
      told: `process`, its number; `hosts`, the names of all; `checkpoint`, its path, and whether it `is_written`; and
        `out`, the folder.
      said: its last lines.
    """
    own, hosts = told["process"], told["hosts"]
    named = [f"process {number} ({hosts[number]})" for number in _lost(own, hosts, said)]
    who = " and ".join(named) if named else f"process {own} ({hosts[own]}), this one, or one that it talked to,"
    were, them = ("were", "them") if len(named) > 1 else ("was", "it")
    what = f"{who} {were} lost, and the training ended with {them}"
    if told["checkpoint"] is None:
        return f"jaxenvs: error: {what}; there is no checkpoint yet."
    # Written by the first process, which may have been lost before it told the others.
    last = "The last checkpoint" if told.get("is_written") else "A checkpoint, if there is one yet,"
    return (
        f"jaxenvs: error: {what}. {last} is {told['checkpoint']}: start all processes again, or fewer, "
        f"with --resume {told['out']}."
    )


def _lost(own: int, hosts: list[str], said: str) -> list[int]:
    """The processes that were lost, as far as the last lines tell."""
    if found := UNHEALTHY.findall(said):
        # As `1, 3`, or `/job:jax_worker/replica:0/task:1`.
        pattern = r"task:(\d+)" if "task:" in found[-1] else r"\d+"
        numbers = {int(number) for number in re.findall(pattern, found[-1])}
        if others := sorted(number for number in numbers if number < len(hosts) and number != own):
            return others
    if LEADER.search(said) and own != 0:
        return [0]
    if PEER.search(said) and len(hosts) == 2:
        return [1 - own]
    return []


if __name__ == "__main__":
    main()
