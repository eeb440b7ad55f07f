"""The table of a sweep's runs: what it shows, and that its estimate is honest."""

import io
import re

import pytest
import rich.console
from absl import logging

from experiments.running import run_table
from experiments.running.run_table import RunTable
from pe_jax.training.metrics import Progress

WARM_UP, STEP, TAIL, STEPS = 10.0, 0.1, 5.0, 100
FIRST, LATER = WARM_UP + STEPS * STEP + TAIL, STEPS * STEP + TAIL  # seconds of a run


def events(jobs: int, runs: int):
    """(time, what) of `jobs` at a time, each with some runs that report every 20 steps."""
    found = []
    for job in range(jobs):
        now = 0.0
        for run in range(runs):
            label, warm = f"job{job} seed{run}", WARM_UP * (run == 0)
            found.append((now, "start", (job, label, STEPS)))
            for step in (1, *range(20, STEPS + 1, 20)):
                progress = Progress(label, step, STEPS, 5 - step / 50, 12_345.0, 0.4, None)
                found.append((now + warm + step * STEP, "report", (progress,)))
            now += warm + STEPS * STEP + TAIL
            found.append((now, "finish", (label,)))
    return sorted(found, key=lambda event: event[0])


def simulated(jobs: int, runs: int, console):
    """(table, time) after each event."""
    now = [0.0]
    planned = {job: [STEPS] * runs for job in range(jobs)}
    with RunTable(planned, jobs, console, clock=lambda: now[0]) as table:
        for now[0], what, values in events(jobs, runs):
            getattr(table, what)(*values)
            yield table, now[0]


def terminal(width: int = 100, height: int = 40) -> rich.console.Console:
    return rich.console.Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )


def test_the_time_left_is_right_from_the_first_interval_on():
    total, guesses = FIRST + 2 * LATER, []
    for table, now in simulated(2, 3, terminal()):
        left, truth = table.seconds_left(), total - now
        if left is None:
            assert now < WARM_UP + 20 * STEP and "no estimate yet" in table.left()
            continue
        ended = any(run.end is not None for run in table.runs.values())
        assert table.left().startswith("about" if ended else "more than")
        # Until a run has ended, what follows its last step is not known: of three runs each here.
        assert (truth - 3 * TAIL if not ended else truth) - 0.5 <= left <= truth + 0.5
        guesses.append(left)
    assert len(guesses) > 20 and guesses[-1] == 0


def test_a_terminal_has_one_table_that_is_redrawn():
    console = terminal()
    for table, _ in simulated(2, 2, console):
        table.live.refresh()
    text = console.file.getvalue()
    assert "\x1b[1A" in text  # the cursor goes up, to draw it again
    *rows, caption = re.findall(r"job\d seed\d.*|\d of 4 runs.*", text.split("\x1b[1A")[-1])
    assert len(rows) == 4 and all("100/100" in x and "3.0000" in x for x in rows)
    assert all(row.strip().endswith("12.3 k tokens/s, MFU 40%") for row in rows)
    assert all(run_table.BAR * "━" in row for row in rows)
    assert caption.strip() == "4 of 4 runs are finished; about 0 seconds left"


def test_a_small_terminal_shows_the_runs_that_run():
    for table, _ in simulated(3, 4, terminal(width=60, height=10)):
        shown = {str(cell) for cell in table.table().columns[0].cells}
        running = {label for label, run in table.runs.items() if run.end is None}
        assert running <= shown and len(shown) <= 4


def test_elsewhere_reports_are_lines(monkeypatch):
    console, said = rich.console.Console(file=io.StringIO()), []
    monkeypatch.setattr(logging, "info", lambda text, *values: said.append(text % values))
    for _ in simulated(1, 2, console):
        pass
    assert not console.file.getvalue()
    assert len(said) == 14 and said[0].startswith(
        "job0 seed0 step 1/100  loss 4.9800  12.3 k tokens/s, MFU 40%"
    )
    assert said[6] == "[1/2 runs] job0 seed0 is finished; about 15 seconds left"


def test_runs_that_were_finished_before_count_as_finished(monkeypatch):
    table = RunTable({"a": [10, 10]}, 1, terminal())
    table.skip("a", "a seed0", 10)
    assert table.finished == 1 and table.planned == {"a": [10]} and table.seconds_left() is None
    table.start("a", "rope(scaling=longrope(short_factor=[1, 1])) seed1", 10)
    (shown,) = table.table().columns[0].cells
    assert str(shown).endswith("[1, 1])) seed1")


@pytest.mark.parametrize("steps, left", [([5], [None]), ([5, 10, 20], [None, 0.15, 0.05])])
def test_a_loop_without_metrics_reports_its_speed_and_time_left(monkeypatch, steps, left):
    found, now = [], [0.0]
    monkeypatch.setattr(run_table.time, "monotonic", lambda: now[0])
    report = run_table.Reporter("x", found.append)
    for step in steps:
        now[0] = 7 + step / 100
        report(step, 25, 1.0, 3)
    assert [p.seconds_left for p in found] == pytest.approx(left)
    assert [p.tokens_per_second for p in found[1:]] == pytest.approx([300.0] * len(found[1:]))
