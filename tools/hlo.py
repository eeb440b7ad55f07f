"""Reads a compiled program's text: collectives, loops, and the TPU compiler's cycles.

XLA's own `cost_analysis` counts the body of a loop once, though layers and tiles are loops. Here
each instruction counts as often as it runs: a loop's bound is a constant of its condition, or an
argument (`loops`) if it depends on the mask. Both branches of a conditional count.
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
NO_ESTIMATE = 2**62  # and above: the TPU compiler writes the largest integer
BOUND = re.compile(r"^[su]\d+\[\]\S* constant\((\d+)\)")


@dataclasses.dataclass
class Instruction:
    """One line: its result's type, its operation, its text, the computations that it calls."""

    name: str
    type: str
    op: str
    text: str
    calls: dict[str, list[str]]


@dataclasses.dataclass
class Collective:
    """All collectives of one kind in a step.

    Attributes:
      count: executions.
      bytes: of the whole array on one chip (gathered, or to be reduced), summed over executions.
      moved: bytes that a chip sends in a ring: (n - 1)/n of `bytes`, twice that for an all-reduce.
    """

    count: float = 0
    bytes: float = 0
    moved: float = 0


@dataclasses.dataclass
class ProgramSummary:
    """Figures of a program, per chip and step.

    Attributes:
      collectives: by kind.
      cycles: sum of the compiler's estimates for the core.
      loops: number of loops whose iterations are not in the text.
      unknown: how many of those were counted once, as no number of iterations was passed.
      unpriced: number of instructions without an estimate: their cycles are missing.
    """

    collectives: dict[str, Collective]
    cycles: float
    loops: int
    unknown: int
    unpriced: int


def computations(text: str) -> dict[str, list[Instruction]]:
    """The computations of a module by name, callees before callers; the entry is the last."""
    by_name: dict[str, list[Instruction]] = {}
    body: list[Instruction] = []
    for line in text.splitlines():
        if match := HEAD.match(line):
            body = by_name[match[1]] = []
        elif line.startswith("  ") and " = " in line:
            name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
            kind, rest = _type(rest)
            calls = {m[1]: re.findall(r"%([\w.\-]+)", m[2]) for m in CALLS.finditer(rest)}
            body.append(Instruction(name.lstrip("%"), kind, rest.partition("(")[0], rest, calls))
    return by_name


def _type(rest: str) -> tuple[str, str]:
    """The type in front of an operation, and what follows; a tuple's type has spaces."""
    depth = 0
    for index, letter in enumerate(rest):
        depth += (letter in "({[") - (letter in ")}]")
        if letter == " " and depth == 0:
            return rest[:index], rest[index + 1 :]
    return rest, ""


def _bytes(kind: str) -> list[float]:
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


def _collective(instruction: Instruction, within: str) -> tuple[str, float, float] | None:
    """Kind, bytes carried and bytes moved of a collective; None for another instruction."""
    kind = instruction.op.removesuffix("-start")
    if kind not in KINDS:
        return None
    sizes = _bytes(instruction.type)
    size = sum(sizes)
    if instruction.op.endswith("-start") and kind != "all-reduce":
        size = max(sizes)  # operands and results are in one tuple
    if within.startswith("all-reduce-scatter"):  # on a TPU, with the slice that it keeps
        kind = "reduce-scatter"
    elif kind == "reduce-scatter":
        size *= group_size(instruction.text)
    n = group_size(instruction.text)
    share = 1 if kind == "collective-permute" else (n - 1) / n
    return kind, size, size * share * (2 if kind == "all-reduce" else 1)


def turns(condition: Sequence[Instruction]) -> int | None:
    """Iterations of a loop that counts from 0; None if its bound is not constant."""
    bounds = [m[1] for x in condition if (m := BOUND.match(f"{x.type} {x.text}"))]
    return int(bounds[0]) if len(bounds) == 1 else None


def summarize(text: str, loops: Sequence[float] = ()) -> ProgramSummary:
    """Reads a compiled module.

    `loops` are the iterations of the loops of one computation whose bound is not constant, in
    order; a computation with fewer such loops takes the last of them.
    """
    modules = computations(text)
    weights: dict[str, float] = defaultdict(float)
    running: dict[str, float] = defaultdict(float)  # without fusions' bodies: a fusion has cycles
    weights[next(reversed(modules))] = running[next(reversed(modules))] = 1
    summary = ProgramSummary(defaultdict(Collective), 0, 0, 0, 0)
    for name, body in reversed(modules.items()):
        whiles = {x.name: turns(modules[x.calls["condition"][0]]) for x in body if x.op == "while"}
        open_loops = [loop for loop, bound in whiles.items() if bound is None]
        known_turns = dict(zip(open_loops[::-1], reversed(loops), strict=False))
        if weights[name]:
            summary.loops += len(open_loops)
            summary.unknown += len(open_loops) - len(known_turns)
        for instruction in body:
            turn_count = whiles.get(instruction.name) or known_turns.get(instruction.name, 1.0)
            for called in sum(instruction.calls.values(), []):
                weights[called] += weights[name] * turn_count
                running[called] += running[name] * turn_count * (instruction.op != "fusion")
            _add(summary, instruction, name, weights[name], running[name])
    return summary


def _add(
    summary: ProgramSummary, instruction: Instruction, within: str, weight: float, running: float
) -> None:
    """Adds one instruction that runs `weight` times, `running` times outside of fusions."""
    if carried := _collective(instruction, within):
        kind, size, moved = carried
        total = summary.collectives[kind]
        total.count += weight
        total.bytes += weight * size
        total.moved += weight * moved
    if match := CYCLES.search(instruction.text):
        priced = int(match[1]) < NO_ESTIMATE
        summary.cycles += running * int(match[1]) if priced else 0
        summary.unpriced += bool(running) and not priced
