"""The table of a sweep's runs: what it shows, and that its estimate is honest."""

import io
import re

import rich.console
from absl import logging

from experiments.running.files import run_table
from experiments.running.files.run_table import RunTable
from pe_jax.training.metrics import Progress

WARM_UP, STEP, TAIL, STEPS = 10.0, 0.1, 5.0, 100


def simulated(jobs: int, runs: int, console):
    """(table, time) after each event: jobs side by side, whose runs report every 20 steps."""
    events, now = [], [0.0]
    for job in range(jobs):
        for run in range(runs):
            label, begin = f"job{job} seed{run}", run * (STEPS * STEP + TAIL) + WARM_UP * bool(run)
            events.append((begin, "start", (job, label, STEPS)))
            begin += WARM_UP * (run == 0)
            for step in (1, *range(20, STEPS + 1, 20)):
                progress = Progress(label, step, STEPS, 5 - step / 50, 12_345.0, 0.4)
                events.append((begin + step * STEP, "report", (progress,)))
            events.append((begin + STEPS * STEP + TAIL, "finish", (label,)))
    with RunTable({j: [STEPS] * runs for j in range(jobs)}, console, lambda: now[0]) as table:
        for now[0], what, values in sorted(events, key=lambda event: event[0]):
            getattr(table, what)(*values)
            yield table, now[0]


def terminal(width: int = 100, height: int = 40) -> rich.console.Console:
    return rich.console.Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )


def test_the_time_left_is_the_rest_of_the_steps_at_their_mean_rate():
    total, guesses = WARM_UP + 3 * (STEPS * STEP + TAIL), []
    for table, now in simulated(2, 3, terminal()):
        left, truth = table.seconds_left(), total - now
        if left is None:
            assert now < WARM_UP + 20 * STEP and "no estimate yet" in table.left()
            continue
        # evaluations count once the first has ended; one job reports right before the other
        assert truth / 2 - TAIL <= left <= 1.4 * truth and table.left().startswith("about")
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
        running = {label for label, run in table.runs.items() if not run.ended}
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


def test_runs_that_were_finished_before_count_as_finished():
    table = RunTable({"a": [10, 10]}, terminal())
    table.skip("a", "a seed0", 10)
    assert table.finished == 1 and table.planned.total() == 1 and table.seconds_left() is None
    table.start("a", "rope(scaling=longrope(short_factor=[1, 1])) seed1", 10)
    (shown,) = table.table().columns[0].cells
    assert str(shown).endswith("[1, 1])) seed1")


def test_a_run_that_continues_counts_the_steps_that_it_makes_here():
    now = [0.0]
    table = RunTable({"a": [100]}, terminal(), lambda: now[0])
    table.start("a", "a", 100)
    for now[0], step in ((3.0, 60), (4.0, 70)):
        table.report(Progress("a", step, 100, 1.0, 1.0))
    assert table.seconds_left() == 3
