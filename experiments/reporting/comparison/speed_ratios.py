"""Speed and memory of a comparison as ratios to its baseline, and tokens per second."""

import itertools
from typing import Any

import numpy as np

from experiments.reporting import statistics
from experiments.reporting.results import Results, Scheme
from experiments.reporting.statistics import Ratio, number

MEASURES = {
    "train_ms": "training step, time",
    "eval_ms": "evaluation, time",
    "prefill_ms": "reading a prompt, time",
    "decode_ms": "decoding one token, time",
    "train_temp_bytes": "training step, temporary memory",
}


def timings(results: Results) -> dict[int, dict[str, Any]]:
    """Length → the batch there, and by scheme its times; the length of training first."""
    speed = results.speed or {}
    trained = {speed["length"]: speed} if "length" in speed else {}
    return trained | {int(n): timed for n, timed in speed.get("lengths", {}).items()}


def ratios(results: Results) -> dict[str, dict[int, dict[str, Ratio]]]:
    """Measure → length → scheme → ratio to the baseline, where both were measured."""
    by_measure: dict[str, dict[int, dict[str, Ratio]]] = {}
    for measure, (length, timed) in itertools.product(MEASURES, timings(results).items()):
        base = timed["encodings"].get(results.manifest.baseline, {}).get(measure)
        for scheme in results.schemes:
            values = timed["encodings"].get(scheme.name, {}).get(measure)
            both = [x if isinstance(x, list) else [x] for x in (values, base)]
            if values and base and len({*map(len, both)}) == 1:  # else they cannot be paired
                at = by_measure.setdefault(measure, {}).setdefault(length, {})
                at[scheme.name] = statistics.ratio(*both)
    return by_measure


def rate_of(measure: str, median: float, length: int, batch: int) -> float | None:
    """Tokens per second of a program that takes `median` milliseconds; None for memory."""
    if not measure.endswith("_ms"):
        return None
    return (batch if measure == "decode_ms" else batch * length) / (median / 1e3)


def speed_cell(measure: str, values: dict, ratio: Ratio | None, length: int, batch: int) -> str:
    """Microseconds per token, or MiB, and the ratio to the baseline; or why there is none."""
    if measure not in values:
        return values.get("problem", "not measured")
    median = float(np.median(values[measure]))
    rate = rate_of(measure, median, length, batch)
    text = number(median / 2**20, 1) if rate is None else number(1e6 / rate, 2)
    return text + (f" ({ratio.median:.2f}×)" if ratio else "")


def step_seconds(results: Results, scheme: Scheme) -> float | None:
    """Seconds of a training step of this comparison: the median of the timed ones, if any."""
    speed, manifest = results.speed or {}, results.manifest
    times = speed.get("encodings", {}).get(scheme.name, {}).get("train_ms")
    same = (speed.get("length"), speed.get("batch")) == (
        manifest.train_length,
        manifest.batch,
    )
    return float(np.median(times)) / 1e3 if times and same else None


def tokens_per_second(results: Results, scheme: Scheme) -> tuple[float | None, str]:
    """(tokens per second in training, its source): from the timings, else from the logs."""
    speed = results.speed or {}
    times = speed.get("encodings", {}).get(scheme.name, {}).get("train_ms")
    if times:
        return speed["length"] * speed["batch"] / (float(np.median(times)) / 1e3), "timed"
    rows = [row for run in scheme.runs.values() for row in run.metrics]
    logged = [r["tokens_per_second"] for r in rows if r.get("tokens_per_second")]
    return (float(np.median(logged)), "logged") if logged else (None, "")
