"""Find what some versions of XLA compute wrong in compiled functions, as XLA's own text shows them.

`python -m tests.compiled_patterns .jax_cache` searches all functions that the tests have compiled.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jax

INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%(?P<name>[\w.-]+) = .*?[\])}] (?P<operation>[\w-]+)\((?P<operands>[^)]*)\)(?P<attributes>.*)"
)
# They give an array another shape or layout and leave its elements where they are in memory.
VIEWS = ("bitcast", "reshape", "copy")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      operation: its name, as "dynamic-slice".
      operands: the names of the instructions that it reads.
      place: of a slice where it begins, of a constant its value; each as numbers in text.
    """

    operation: str
    operands: list[str]
    place: list[str]


def computations(hlo: str) -> Iterator[tuple[str, dict[str, Instruction]]]:
    """Yield the name of each computation, and its instructions by their names."""
    for block in re.split(r"\n(?=%|ENTRY )", hlo):
        if head := re.match(r"%([\w.-]+) \(", block):
            found = [each for line in block.splitlines() if (each := INSTRUCTION.match(line))]
            yield head[1], {each["name"]: _instruction(**each.groupdict()) for each in found}


def _instruction(name: str, operation: str, operands: str, attributes: str) -> Instruction:
    bounds = re.search(r"slice=\{(.*?)\}", attributes)
    place = [operands] if operation == "constant" else re.findall(r"\[(\d+):", bounds[1] if bounds else "")
    return Instruction(operation, re.findall(r"%([\w.-]+)", operands), place)


def fused_products(hlo: str) -> list[str]:
    """Return the fusions of a matrix product with anything else for XLA's library of kernels: jax-ml/jax#39103."""
    of_library = set(re.findall(r"calls=%([\w.-]+),.*__ynn_fusion", hlo))
    found = []
    for name, instructions in computations(hlo):
        operations = {instruction.operation for instruction in instructions.values()}
        if name in of_library and "dot" in operations and operations - {"dot", "parameter", *VIEWS}:
            found.append(name)
    return found


def shifted_updates(hlo: str) -> list[str]:
    """Return the fusions that write a slice of an array at another place of the same array: openxla/xla#49176."""
    fused, found = set(re.findall(r"fusion\(.*calls=%([\w.-]+)", hlo)), []
    for name, instructions in computations(hlo):
        if name not in fused:
            continue
        for instruction in instructions.values():
            if instruction.operation == "dynamic-update-slice":
                written, update, *starts = instruction.operands
                if _reads_elsewhere(update, _source(written, instructions), starts, instructions):
                    found.append(name)
    return found


def _source(name: str, instructions: dict[str, Instruction]) -> str:
    while instructions[name].operation in VIEWS:
        name = instructions[name].operands[0]
    return name


def _reads_elsewhere(name: str, array: str, starts: list[str], instructions: dict[str, Instruction]) -> bool:
    """Return whether an update needs elements of the array that are not at its own place."""
    found = instructions[name]
    if found.operation in ("slice", "dynamic-slice", "gather") and _source(found.operands[0], instructions) == array:
        if found.operation == "slice":
            there = [number for start in starts for number in instructions[start].place]
            return _without_zeros(found.place) != _without_zeros(there)
        return found.operands[1:] != starts
    return any(_reads_elsewhere(operand, array, starts, instructions) for operand in found.operands)


def _without_zeros(place: list[str]) -> list[str]:
    return [number for number in place if number != "0"]  # they may have been reshaped to different numbers of axes


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and the texts of the functions in a cache of JAX that this machine can read."""
    from jax._src import compilation_cache, xla_bridge
    from jax._src.lib import _jax

    backend, devices = xla_bridge.get_backend("cpu"), _jax.DeviceList(tuple(jax.devices()[:1]))
    for path in sorted(folder.glob("*-cache")):
        try:
            code, _ = compilation_cache.extract_executable_and_time(
                compilation_cache.decompress_executable(path.read_bytes())
            )
            modules = backend.deserialize_executable(code, devices, None).hlo_modules()
        except Exception as error:
            print(f"{path.name} cannot be read: {str(error)[:80]}", file=sys.stderr)
            continue
        yield path.name.rsplit("-", 2)[0], "".join(module.to_string() for module in modules)


def main(folder: Path) -> None:
    """Print how many functions have which pattern."""
    searched, found = 0, Counter[tuple[str, str]]()
    for name, hlo in texts(folder):
        searched += 1
        for search in (fused_products, shifted_updates):
            if search(hlo):
                found[search.__name__, name] += 1
    print(f"{searched} functions searched")
    for (pattern, name), number in sorted(found.items()):
        print(f"{pattern}: {name}, {number} times")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
