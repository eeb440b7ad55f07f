"""How fast attention and training steps are, with every scheme; next to cuDNN, jax.nn, Flex."""

import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from experiments.measuring import training_steps, workloads
from experiments.measuring.timing import NAIVE, OURS, Refused, reason
from experiments.measuring.workloads import (
    FLEX,
    NAIVE_CUDNN,
    PLAIN,
    SCHEMES,
    SPECS,
    Planned,
    Program,
    Sizes,
)
from pe_jax.encodings.base import adds_to_input
from pe_jax.engines import dispatch, reference
from pe_jax.engines.api import attention
from pe_jax.engines.sharded.layout import CONTIGUOUS
from pe_jax.models.config import ModelConfig
from pe_jax.training.utilization import peak
from tools.gpu_stages import agreement
from tools.gpu_stages.results import Clock, Results, Row, Shared, in_processes, key

ATTENTION, STEP = "benchmark", "step"
FIRST = (*agreement.FIRST, *agreement.ONLY_TIMED)
IN_FLEX = ("nope", "alibi", "t5")
CUDNN, FUSED = "cudnn", "fused"  # engines, whichever of the two `attention` chooses
CUDNN_LIMIT = 4096  # tokens, up to which a materialised bias in cuDNN is the rival
NAIVE_LIMIT = 4096  # tokens: a bias of 32 heads takes 1 GiB in bfloat16, and XLA's scores more
STEPS_AT_ONCE = 6  # models that share the device's memory
SAMPLES, LEAST = 5, 0.02  # of each program; seconds of a sample


@dataclasses.dataclass(frozen=True)
class Scale:
    """What is timed: sizes of attention and of the model, lengths, schemes.

    `rows` are the tokens of all rows together, for lengths up to it; `schemes` begin with the most
    important; `others` are engines other than ours. A training step of `model` has `tokens`, in
    rows of each of `step_lengths`.
    """

    sizes: Sizes
    lengths: tuple[int, ...]
    rows: int
    schemes: tuple[str, ...]
    others: tuple[str, ...]
    model: ModelConfig
    tokens: int
    step_lengths: tuple[int, ...]


LARGE = Scale(
    Sizes(1, 32, 64, "bfloat16", True),
    (4096, 16384, 1024, 65536),
    16384,  # as FlashAttention's papers have it, with heads of 2,048 channels together
    (*FIRST, *(name for name in SCHEMES if name not in FIRST)),
    (CUDNN, FUSED, NAIVE, NAIVE_CUDNN, FLEX),
    ModelConfig(vocab=257, width=512, layers=8, heads=8, dtype="bfloat16"),  # 25M
    32768,
    (512, 8192),
)
TINY = Scale(  # of a rehearsal
    Sizes(1, 2, 8, "float32", True),
    (32,),
    64,
    ("nope", "t5"),
    (CUDNN, FUSED, NAIVE, NAIVE_CUDNN),
    ModelConfig(vocab=257, width=16, layers=1, heads=2),
    64,
    (32,),
)


def operations(sizes: Sizes, length: int, backward: bool) -> float:
    """Operations of the products of attention, without those that a causal mask hides."""
    forward = 4.0 * sizes.batch * sizes.heads * length**2 * sizes.head_dim
    return forward * (3.5 if backward else 1.0) * (0.5 if sizes.causal else 1.0)


def seconds(run: Callable[[], Any], clock: Clock) -> float:
    """The median of a few samples per call; calls of a sample wait for the device once."""

    def sample(calls: int) -> float:
        begin, result = time.perf_counter(), None
        for _ in range(calls):
            result = run()
        jax.block_until_ready(result)
        return (time.perf_counter() - begin) / calls

    calls = max(1, math.ceil(LEAST / sample(1)))
    samples = [sample(calls)]
    while len(samples) < SAMPLES and clock.left:
        samples.append(sample(calls))
    return statistics.median(samples)


def runs(name: str, sizes: Sizes, length: int) -> str:
    """The module of the engine that `attention` takes for a scheme."""
    encoding, chosen = workloads.scheme(name, length), []

    def note(*call):
        engine: Any = dispatch.engine(None, CONTIGUOUS, dispatch.Call(*call), name)
        chosen.append(engine.__module__.removeprefix("pe_jax.engines."))
        return reference.attend(*call)

    shape = sizes.batch, length, sizes.heads, sizes.head_dim
    rows = jax.ShapeDtypeStruct(shape, sizes.dtype)
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), sizes.dims))

    def call(params, q, k, v):
        options: Any = {"x": workloads.flat(q), "causal": sizes.causal, "implementation": note}
        embedded = adds_to_input(encoding, sizes.dims)
        return attention(q, k, v, encoding=encoding, params=params, embedded=embedded, **options)

    jax.eval_shape(call, params, rows, rows, rows)
    return chosen[0]


# Attention.


def plan(scale: Scale) -> Iterator[tuple[int, str, list[Planned]]]:
    """Length, mode and programs, group by group, the most wanted first."""
    limits = {NAIVE: NAIVE_LIMIT}
    modes = [title for mode in ("forward", "backward") for title in workloads.MODES[mode]]
    first = [name for name in scale.schemes if name in FIRST]
    more = [name for name in scale.schemes if name not in FIRST]
    flex = [name for name in scale.schemes if name in IN_FLEX]
    bare = [name for name in scale.schemes if name == "nope"]
    biased = [name for name in first if name != "nope"]
    lengths, some = scale.lengths, scale.lengths[:1]
    short = tuple(n for n in lengths if n <= CUDNN_LIMIT)
    turns = (
        *((first, OURS, lengths), (bare, CUDNN, lengths), (bare, FUSED, lengths)),
        *((biased, NAIVE_CUDNN, short), (first, NAIVE, lengths), (flex, FLEX, some)),
        *((more, OURS, lengths), (flex, FLEX, lengths), (more, NAIVE, lengths)),
    )
    for schemes, engine, turn_lengths in turns:
        if engine not in (OURS, *scale.others):
            continue
        for length, mode in itertools.product(turn_lengths, modes):
            arguments = _rows(scale, length), length, mode, schemes, (engine,), limits
            planned = workloads.plan(*arguments) if schemes else ()  # `plan` makes the operands
            yield length, mode, list(planned)


def benchmark(results: Results, clock: Clock, processes: int, scale: Scale) -> None:
    """Times attention, group by group, until time is up: compiled side by side, timed alone."""
    task = functools.partial(_benchmark, scale, processes, clock, results.keys)
    for row in in_processes(task, processes, clock):
        results.add(row)


def _benchmark(
    scale: Scale, processes: int, clock: Clock, done: set, number: int, shared: Shared
) -> None:
    """Times some of the schemes in one of the processes, each by all engines."""
    best = peak(jax.devices()[:1])
    schemes = [name for n, name in enumerate(scale.schemes) if n % processes == number]
    for length, mode, planned in plan(dataclasses.replace(scale, schemes=tuple(schemes))):
        sizes, jobs = _rows(scale, length), []
        backward = mode not in workloads.MODES["forward"]
        for item in planned:
            row = {"stage": ATTENTION, "scheme": item.scheme, "dtype": sizes.dtype}
            row |= {"length": length, "mode": mode, "engine": item.engine}
            if key(row) not in done:
                jobs.append((row, item.compile))

        def figures(row, taken, sizes=sizes, length=length, backward=backward) -> Row:
            rate = operations(sizes, length, backward) / taken
            result: Row = {"tflops": rate / 1e12, "of_peak": rate / best if best else None}
            if row["engine"] == OURS:
                result["runs"] = runs(row["scheme"], sizes, length)
            return result

        _time(shared, jobs, clock, figures)


def _rows(scale: Scale, length: int) -> Sizes:
    """The sizes, with the number of rows that makes up the tokens."""
    return dataclasses.replace(scale.sizes, batch=max(1, scale.rows // length))


def _time(shared: Shared, jobs: list, clock: Clock, figures: Callable) -> None:
    """Compiles a group's programs, waits for all processes, and times them one after the other.

    `figures(row, seconds)` gives further fields. The reason why something did not run is a result.
    """
    built: list[tuple[Row, Program]] = []
    for row, build in jobs if clock.left else ():
        try:
            built.append((row, build()))
        except Exception as error:  # a compiler's, say
            shared.found.put(row | {"note": reason(error)})
    shared.wait(clock)
    for row, program in built if clock.left else ():
        try:
            with shared.lock:
                taken = seconds(program.run, clock)
            temp = program.temp_bytes and program.temp_bytes / 2**20
            entry: Row = {"ms": 1e3 * taken, "compile_s": program.compile_seconds, "temp_mib": temp}
            entry |= figures(row, taken) | ({"note": program.note} if program.note else {})
        except Exception as error:  # no memory left for it, say
            entry = {"note": reason(error)}
        shared.found.put(row | entry)
    built.clear()
    shared.wait(clock)


# Training steps.


def _step(scale: Scale, name: str, length: int) -> Program:
    """A training step of the model with a scheme.

    Raises:
      Refused: its attention is dense where that takes gigabytes.
    """
    head_dim = scale.model.width // scale.model.heads
    sizes = Sizes(1, scale.model.heads, head_dim, scale.model.dtype, True)
    if length > 4096 and runs(name, sizes, length) == "reference":
        raise Refused("all scores at once")
    encoding = SPECS.get(name, name).format(length=length)
    model = dataclasses.replace(scale.model, encoding=encoding)
    begin = time.perf_counter()
    running = training_steps.ours(
        training_steps.Size(model, max(1, scale.tokens // length), length)
    )
    jax.block_until_ready(running.step())
    return Program(running.step, running.temp_bytes, time.perf_counter() - begin)


def steps(results: Results, clock: Clock, processes: int, scale: Scale) -> None:
    """Times training steps, a few schemes at a time, until time is up."""
    processes = min(processes, STEPS_AT_ONCE)
    task = functools.partial(_steps, scale, processes, clock, results.keys)
    for row in in_processes(task, processes, clock):
        results.add(row)


def _steps(
    scale: Scale, processes: int, clock: Clock, done: set, number: int, shared: Shared
) -> None:
    """Times training steps in one of the processes."""
    jobs = []
    for part in (FIRST, tuple(name for name in scale.schemes if name not in FIRST)):
        wanted = [name for name in part if name in scale.schemes and name != PLAIN]
        for length, name in itertools.product(scale.step_lengths, wanted):
            row = {"stage": STEP, "scheme": name, "dtype": scale.model.dtype, "length": length}
            if key(row) not in done:
                jobs.append((row, functools.partial(_step, scale, name, length)))

    def figures(row, taken) -> Row:
        return {"tokens_per_s": max(scale.tokens, row["length"]) / taken}

    for first in range(0, len(jobs), processes):
        _time(shared, jobs[first : first + processes][number : number + 1], clock, figures)
