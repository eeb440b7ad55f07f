"""Measures which tiles are fastest on this CPU, and writes pe_jax/engines/tiled/tile_sizes.json.

    python -m tools.tile_sizes --write
    python -m tools.tile_sizes --lengths=512,8192 --heads=16 --head_dim=128

Attention forward and backward, causal, float32, about as many tokens at every length. All shapes of
a case are timed in turn in one process. A shape's cost at a length is its time over that of the
fastest, geometric mean over schemes; of two within MARGIN, that of longer rows is kept. A quarter
of an hour on two cores, which should do nothing else.
"""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import pe_jax
from experiments.measuring import workloads
from experiments.measuring.timing import interleave
from pe_jax.engines.tiled import tiles
from pe_jax.engines.tiled.engine import Tiled

Shape = tuple[int, int]
SHAPES: tuple[Shape, ...] = ((64, 64), (256, 256), (512, 256), (512, 512))
SCHEMES = {"near": ("nope", "t5"), "far": ("deberta", "wavlm")}  # by how far vectors reach
MARGIN = 1.03
PATH = Path(tiles.__file__).with_name("tile_sizes.json")


def programs(name: str, length: int, sizes: workloads.Sizes) -> dict[Shape, Callable[[], Any]]:
    """Forward and backward of a scheme with each shape of tiles that the length holds, compiled."""
    encoding = workloads.scheme(name, length)
    params = encoding.init(jax.random.key(0), sizes.dims)
    shape = sizes.batch, length, sizes.heads, sizes.head_dim
    operands = [jnp.asarray(workloads.normal(*shape, seed=seed)) for seed in range(4)]

    def attend(rows: int, columns: int) -> Callable:
        engine = Tiled(tiles.TileSizes(rows=rows, columns=columns))

        def run(params, q, k, v):
            given = {"x": workloads.flat(q), "embedded": True, "implementation": engine}
            return pe_jax.attention(q, k, v, encoding=encoding, params=params, **given)

        return run

    found = {}
    for rows, columns in SHAPES:
        if max(rows, columns) <= length:
            f = workloads.gradient(attend(rows, columns))
            found[rows, columns] = workloads.compiled(f, params, *operands)[1].run
    return found


def measure(name: str, length: int, sizes: workloads.Sizes, rounds: int) -> dict[Shape, float]:
    """The median seconds of each shape, all timed in turn."""
    found = programs(name, length, sizes)
    for run in found.values():
        jax.block_until_ready(run())
    return {shape: float(np.median(x)) for shape, x in interleave(found, rounds).items()}


def costs(times: Sequence[Mapping[Shape, float]]) -> dict[Shape, float]:
    """Times of a shape over those of the fastest: geometric mean over schemes."""
    logs = [{shape: np.log(t / min(each.values())) for shape, t in each.items()} for each in times]
    return {shape: float(np.exp(np.mean([x[shape] for x in logs]))) for shape in logs[0]}


def choose(found: Mapping[int, Mapping[str, Mapping[Shape, float]]]) -> list[dict[str, Any]]:
    """The rows of the table, from the costs of each shape by length and kind of scheme."""
    rows: list[dict[str, Any]] = []
    for length in sorted(found, reverse=True):
        row: dict[str, Any] = {"length": length if rows else None}
        for kind, each in found[length].items():
            best = min(each, key=each.__getitem__)
            longer = tuple(rows[0][kind]) if rows else best
            keep = longer in each and each[longer] <= MARGIN * each[best]
            row[kind] = list(longer if keep else best)
        if not rows or any(row[kind] != rows[0][kind] for kind in found[length]):
            rows.insert(0, row)
    return rows


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Writes the table, and where it was measured."""
    about = {"command": "python -m tools.tile_sizes --write", "machine": machine()}
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    head = ",\n".join(
        f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in about.items()
    )
    path.write_text(f'{{\n{head},\n  "sizes": [\n{lines}\n  ]\n}}\n', encoding="utf-8")


def machine() -> str:
    """The processor and the versions that were measured."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    names = [line.split(":")[1].strip() for line in text.splitlines() if "model name" in line]
    name = f"{len(names)} × {names[0]}" if names else platform.processor() or platform.machine()
    return f"{name}; jax {jax.__version__}"


def main(_: list[str]) -> None:
    """Measures, shows the costs, and writes the table if asked to."""
    options = flags.FLAGS
    found: dict[int, dict[str, dict[Shape, float]]] = {}
    for length in sorted({int(n) for n in options.lengths}):
        batch = max(1, options.tokens // length)
        sizes = workloads.Sizes(batch, options.heads, options.head_dim, "float32", True)
        for kind, names in SCHEMES.items():
            times = [measure(name, length, sizes, options.rounds) for name in names]
            found.setdefault(length, {})[kind] = costs(times)
            for name, each in zip(names, times, strict=True):
                shown = ", ".join(f"{r}×{c} {1e3 * t:.0f} ms" for (r, c), t in each.items())
                print(f"{length:,} tokens, {name}: {shown}", flush=True)
    rows = choose(found)
    print(*rows, sep="\n")
    if options.write:
        write(rows, PATH)


if __name__ == "__main__":
    flags.DEFINE_list("lengths", ["512", "1024", "4096"], "tokens of a row, the longest for all")
    flags.DEFINE_integer("tokens", 4096, "tokens of a batch", lower_bound=1)
    flags.DEFINE_integer("heads", 8, "heads", lower_bound=1)
    flags.DEFINE_integer("head_dim", 64, "width of a head", lower_bound=1)
    flags.DEFINE_integer("rounds", 7, "samples of each program", lower_bound=3)
    flags.DEFINE_bool("write", False, "write the table")
    app.run(main)
