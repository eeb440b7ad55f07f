"""What a compiled program's text says: collectives, loops, and the TPU compiler's cycles.

XLA's own `cost_analysis` counts the body of a loop once, though layers and tiles are loops. Here
each instruction counts as often as it runs: a loop's bound is a constant of its condition, or it is
given where it follows from the mask (`loops`).
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Sequence

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
CALLS = re.compile(r"(calls|to_apply|body|condition|\w+_computations?)=\{?((?:%[\w.\-]+(?:, )?)+)")
SHAPE = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
NO_ESTIMATE = 2**62  # and above: the TPU compiler's word for it is the largest integer
BOUND = re.compile(r"^[su]\d+\[\]\S* constant\((\d+)\)")


@dataclasses.dataclass
class Instruction:
    """One line: the type of its result, the operation, the whole of its text, what it calls."""

    name: str
    type: str
    op: str
    text: str
    calls: dict[str, list[str]]


@dataclasses.dataclass
class Collective:
    """All collectives of one kind: how many run in a step, what they carry, what they move.

    Attributes:
      count: executions.
      bytes: of the whole array on one chip, summed (the gathered one, the one to be reduced).
      moved: bytes that a chip sends in a ring: (n - 1)/n of them, twice that for an all-reduce.
    """

    count: float = 0
    bytes: float = 0
    moved: float = 0


@dataclasses.dataclass
class Summary:
    """A program's text in figures, a chip and a step.

    Attributes:
      collectives: by kind.
      cycles: the compiler's estimates of what runs on the core, added up.
      loops: the loops whose number of turns the text does not tell.
      unknown: how many of those were counted once, as nobody said how often they turn.
      unpriced: instructions for which the compiler has no estimate: their cycles are missing.
    """

    collectives: dict[str, Collective]
    cycles: float
    loops: int
    unknown: int
    unpriced: int


def computations(text: str) -> dict[str, list[Instruction]]:
    """The computations of a module by name, callees before callers; the entry is the last."""
    found: dict[str, list[Instruction]] = {}
    here: list[Instruction] = []
    for line in text.splitlines():
        if match := HEAD.match(line):
            here = found[match[1]] = []
        elif line.startswith("  ") and " = " in line:
            name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
            kind, rest = _type(rest)
            calls = {m[1]: re.findall(r"%([\w.\-]+)", m[2]) for m in CALLS.finditer(rest)}
            here.append(Instruction(name.lstrip("%"), kind, rest.partition("(")[0], rest, calls))
    return found


def _type(rest: str) -> tuple[str, str]:
    """The type in front of an operation, and what follows; a tuple's type has spaces."""
    depth = 0
    for at, letter in enumerate(rest):
        depth += (letter in "({[") - (letter in ")}]")
        if letter == " " and depth == 0:
            return rest[:at], rest[at + 1 :]
    return rest, ""


def _bytes(kind: str) -> list[float]:
    """Of each array in a type."""
    sizes = []
    for name, bits, shape in SHAPE.findall(kind):
        width = 1 if name == "pred" else int(bits) / 8
        sizes.append(width * math.prod(int(n) for n in shape.split(",") if n))
    return sizes


def group_size(text: str) -> int:
    """How many devices take part in a collective, in any of XLA's three notations."""
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", match[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'([^']+)'", match[2]))
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]", text):
        return int(match[2])
    if match := re.search(r"replica_groups=\{\{([\d,]*)\}", text):
        return len(match[1].split(","))
    return 2  # collective-permute: pairs


def _collective(one: Instruction, within: str) -> tuple[str, float, float] | None:
    """Kind, bytes carried and bytes moved of a collective; None for another instruction."""
    kind = one.op.removesuffix("-start")
    if kind not in KINDS:
        return None
    sizes = _bytes(one.type)
    size = sum(sizes)
    if one.op.endswith("-start") and kind != "all-reduce":  # operands and results, in one tuple
        size = max(sizes)
    if within.startswith("all-reduce-scatter"):  # on a TPU: what it keeps is cut out at once
        kind = "reduce-scatter"
    elif kind == "reduce-scatter":
        size *= group_size(one.text)
    n = group_size(one.text)
    share = 1 if kind == "collective-permute" else (n - 1) / n
    return kind, size, size * share * (2 if kind == "all-reduce" else 1)


def turns(condition: Sequence[Instruction]) -> int | None:
    """How often a loop that counts from 0 turns; None if its bound is no constant."""
    bounds = [m[1] for one in condition if (m := BOUND.match(f"{one.type} {one.text}"))]
    return int(bounds[0]) if len(bounds) == 1 else None


def summarize(text: str, loops: Sequence[float] = ()) -> Summary:
    """Reads a compiled module.

    Args:
      text: of the compiled program.
      loops: turns of the loops in one computation whose bound is no constant, in order; the last
        ones where a computation has fewer.
    """
    modules = computations(text)
    weights: dict[str, float] = defaultdict(float)
    running: dict[str, float] = defaultdict(float)  # not inside a fusion, whose cycles are its own
    weights[next(reversed(modules))] = running[next(reversed(modules))] = 1
    found = Summary(defaultdict(Collective), 0, 0, 0, 0)
    for name, body in reversed(modules.items()):
        open_loops = [
            one for one in body if one.op == "while" and turns(modules[_only(one)]) is None
        ]
        given = dict(zip([x.name for x in open_loops[::-1]], reversed(loops), strict=False))
        if weights[name]:
            found.loops += len(open_loops)
            found.unknown += len(open_loops) - len(given)
        for one in body:
            often = 1.0
            if one.op == "while":
                often = turns(modules[_only(one)]) or given.get(one.name, 1.0)
            for called in sum(one.calls.values(), []):
                weights[called] += weights[name] * often
                running[called] += running[name] * often * (one.op != "fusion")
            _add(found, one, name, weights[name], running[name])
    return found


def _only(loop: Instruction) -> str:
    """The name of a loop's condition."""
    return loop.calls["condition"][0]


def _add(found: Summary, one: Instruction, within: str, weight: float, running: float) -> None:
    """Adds one instruction that runs so often."""
    if carried := _collective(one, within):
        kind, size, moved = carried
        total = found.collectives[kind]
        total.count += weight
        total.bytes += weight * size
        total.moved += weight * moved
    if match := CYCLES.search(one.text):
        known = int(match[1]) < NO_ESTIMATE
        found.cycles += running * int(match[1]) if known else 0
        found.unpriced += bool(running) and not known
