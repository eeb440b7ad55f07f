"""Speed and memory of a comparison as ratios to its baseline, and tokens per second."""

from typing import Any

import numpy as np

from experiments.reporting import statistics
from experiments.reporting.results import Results, Scheme
from experiments.reporting.statistics import Ratio, number

MEASURES = {
    "train_ms": "training step, time",
    "eval_ms": "evaluation, time",
    "train_temp_bytes": "training step, temporary memory",
}
BY_LENGTH = {
    "train_ms": "training step, time",
    "eval_ms": "evaluation, time",
    "prefill_ms": "reading a prompt, time",
    "decode_ms": "decoding one token, time",
    "train_temp_bytes": "training step, temporary memory",
}


def speed_ratios(results: Results) -> dict[str, dict[str, Ratio]]:
    """Measure → scheme → ratio to the baseline, if both were measured."""
    return _ratios(results, (results.speed or {}).get("encodings", {}), MEASURES)


def speed_by_length(results: Results) -> dict[str, dict[int, dict[str, Ratio]]]:
    """Measure → length → scheme → ratio to the baseline."""
    by_measure: dict[str, dict[int, dict[str, Ratio]]] = {}
    for length, timings in (results.speed or {}).get("lengths", {}).items():
        for measure, ratios in _ratios(results, timings["encodings"], BY_LENGTH).items():
            by_measure.setdefault(measure, {})[int(length)] = ratios
    return by_measure


def _ratios(results: Results, timings: dict, measures: dict) -> dict[str, dict[str, Ratio]]:
    """Measure → scheme → ratio to the baseline; `timings` by scheme."""
    baseline = timings.get(results.manifest["baseline"], {})
    by_measure: dict[str, dict[str, Ratio]] = {}
    for measure in measures:
        for scheme in results.schemes:
            ratio = _ratio(timings.get(scheme.name, {}).get(measure), baseline.get(measure))
            if ratio is not None:
                by_measure.setdefault(measure, {})[scheme.name] = ratio
    return by_measure


def _ratio(values: Any, baseline: Any) -> Ratio | None:
    """The ratio of repeats or of two numbers; None if one is missing or they cannot be paired."""
    if not values or not baseline:
        return None
    ours, theirs = (x if isinstance(x, list) else [x] for x in (values, baseline))
    try:
        return statistics.ratio(ours, theirs)
    except ValueError:  # different numbers of repeats
        return None


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
        manifest["train_length"],
        manifest["batch"],
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
