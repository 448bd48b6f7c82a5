"""Names that stood for terms of SB3 and Gymnasium do not come back in `bridge/`, in code or prose."""

import re

from tests.packaging.installed import CHECKOUT

# Each pattern finds the parts of names too, as in `lane_keys` or `AllLanesVecEnv`, but not in `plane`.
RETIRED = {
    r"(?<![A-Za-z])lanes?(?![a-z])|Lanes?(?![a-z])": "env_indices, num_envs, env_states: what it is",
}
# Names of 0.2.0 that still work, and warn.
DEPRECATED = {
    "evaluation/evaluating.py": r"max_lanes",
    "host_env/processes/worker_handle.py": r"def lanes\(|\.lanes is deprecated",
}
# Names of `jaxenvs`.
IMPORTED = r"lane_env|lane_key|replay_lanes|Lanes\(|import Lanes|: Lanes,|\._started\(\)\)\.lanes"


def retired_in(path):
    kept = f"{IMPORTED}|{DEPRECATED.get(str(path.relative_to(CHECKOUT / 'bridge')), '(?!)')}"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for pattern, better in RETIRED.items():
            for found in re.finditer(pattern, re.sub(kept, "", line)):
                yield f"{path.relative_to(CHECKOUT)}:{number}: {found[0]!r}: write {better}"


def test_retired_names_do_not_come_back():
    paths = sorted((CHECKOUT / "bridge").rglob("*.py"))
    found = [each for path in paths for each in retired_in(path)]
    found += [str(path) for path in paths for pattern in RETIRED if re.search(pattern, path.stem)]
    assert not found, "\n".join(found)
