"""Losses during training: which schemes are late, and not worse."""

import json

import numpy as np
import pytest
from matplotlib.text import Text

from experiments.reporting import results
from experiments.reporting.comparison import figures
from experiments.reporting.comparison.caveats import summary
from experiments.reporting.comparison.loss_curves import curve, still_falling
from tests.reporting.comparisons import TRAIN, Page, build, table

pytestmark = pytest.mark.xdist_group("report")


PEAK, EVERY, LAST = 0.01, 50, 400


def evaluated(folder, curves):
    """Metrics with a cosine decay to a tenth, and a loss at the training length every 50 steps."""
    for name, loss in curves.items():
        for run in (folder / "runs" / name).glob("seed*"):
            rows = []
            for step in (1, *range(10, LAST + 1, 10)):
                decay = 0.1 + 0.45 * (1 + np.cos(np.pi * step / LAST))
                row = {"step": step, "loss": 2.5, "learning_rate": PEAK * decay}
                own = 0.001 * int(run.name[-1]) - 0.001  # of the seed
                rows.append(row | ({} if step % EVERY else {"eval_loss": loss(step, decay) + own}))
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (run / "metrics.jsonl").write_text(lines, encoding="utf-8")


def falling(rate, bottom=2.0, settles=0.0):
    """A loss that falls with the work done to a bottom, and by the decay itself at the end."""
    at = np.arange(LAST + 1)
    work = np.cumsum(0.1 + 0.45 * (1 + np.cos(np.pi * at / LAST)))

    def loss(step, decay):
        return bottom + 2 * np.exp(-rate * work[step]) - settles * (1 - decay)

    return loss


def test_a_scheme_that_is_late_is_told_from_one_that_is_worse(fake, no_pictures):
    # As fast as rope at that loss (alibi: half as far; nope: half as fast); t5 and shaw have ended.
    names = ["rope", "alibi", "nope", "t5", "shaw"]
    curves = {"rope": falling(0.02, 2.0, 0.1), "alibi": lambda step, decay: half(step // 2, decay)}
    half, slow = falling(0.02, 2.0, 0.1), falling(0.004, 2.2, 0.1)
    curves |= {"nope": slow, "t5": falling(0.03, 2.5, 0.1), "shaw": falling(0.03, 2.5, 0.2)}
    folder = fake(names, speed=False, secondary={"protocol": "non-overlapping", "length": TRAIN})
    assert still_falling(results.read(folder)) == {}
    evaluated(folder, curves)
    read = results.read(folder)
    late = still_falling(read)
    assert set(late) == {"alibi"}
    ours, best = (curve(read.scheme(name)) for name in ("alibi", "rope"))
    fall = ours.losses[-2] - ours.losses[-1]
    assert late["alibi"].startswith(f"still falling: {fall:.3f} nats over the last 50 steps; the")
    k = np.flatnonzero(best.losses < ours.losses[-1])[0]
    there = (best.losses[k - 1] - best.losses[k]) / np.diff(best.work)[k - 1]
    assert (
        f"rope, fell {there * (ours.work[-1] - ours.work[-2]):.3f} at that level" in late["alibi"]
    )
    (sure,) = [x for x in summary(read).confidence if "Undertrained" in x]
    assert sure.startswith("Undertrained, perhaps, rather than worse: alibi. At the end")
    text = Page(build(folder).read_text(encoding="utf-8")).text
    assert text.count("till falling: ") == 1 and sure in text  # on its card; how sure
    rows = [r for r in table(folder / "figures" / "loss-by-step.csv") if r["encoding"] == "alibi"]
    assert [int(r["step"]) for r in rows] == list(range(EVERY, LAST + 1, EVERY))
    np.testing.assert_allclose([float(r["mean"]) for r in rows], ours.losses)
    assert (folder / "figures" / "loss-by-step.png").is_file()


def test_what_the_decay_itself_takes_off_is_no_sign_of_being_late(fake):
    folder = fake(["rope", "t5"], speed=False)
    evaluated(folder, {"rope": falling(0.1, 2.0, 0.5), "t5": falling(0.1, 2.17, 0.3)})
    read = results.read(folder)
    best, ours = (curve(read.scheme(name)) for name in ("rope", "t5"))
    k = np.flatnonzero(best.losses < ours.losses[-1])[0]
    slopes = [-np.diff(c.losses)[at] / np.diff(c.work)[at] for c, at in ((best, k - 1), (ours, -1))]
    assert slopes[1] > slopes[0]  # but rope falls more over the same last steps, of the same decay
    assert still_falling(read) == {}


def test_seconds_are_steps_times_the_timed_step_and_compare_at_the_same_time(fake):
    """alibi ends with the least mean, but its steps are slow: when rope ends, rope is lower."""
    folder = fake(["rope", "alibi", "t5"])
    speed = json.loads((folder / "speed.json").read_text())
    timed = {"rope": [9.0, 10.0, 40.0], "alibi": [20.0, 20.0, 20.0]}
    for name, times in timed.items():
        speed["encodings"][name]["train_ms"] = times
    speed["encodings"]["t5"] = {"problem": "out of memory"}
    (folder / "speed.json").write_text(json.dumps(speed))
    evaluated(folder, {"rope": falling(0.02), "alibi": falling(0.02, 1.98), "t5": falling(0.02)})
    read = results.read(folder)
    drawn = figures.loss_by_seconds(read)
    at = {(name, step): (seconds, loss) for name, step, seconds, loss in drawn.rows}
    assert {name for name, _ in at} == {*timed}
    assert at["rope", LAST][0] == pytest.approx(LAST * 0.01)
    assert at["alibi", LAST // 2][0] == at["rope", LAST][0]
    loss = at["rope", LAST][1]
    assert at["alibi", LAST][1] < loss < at["alibi", LAST // 2][1]
    title = "".join(text.get_text() for text in drawn.figure.findobj(Text)).replace("\n", " ")
    assert f"After 4 s, when the first one ends, rope has the least mean, {loss:.3f}" in title
    speed["length"] *= 2  # of other steps than those of the runs
    (folder / "speed.json").write_text(json.dumps(speed))
    assert figures.loss_by_seconds(results.read(folder)) is None


def test_without_losses_of_all_seeds_nothing_is_said_of_a_curve(fake):
    folder = fake(["rope", "alibi"], speed=False)
    assert figures.loss_by_step(results.read(folder)) is None
    evaluated(folder, {"rope": falling(0.02)})
    drawn = figures.loss_by_step(results.read(folder))
    assert ("alibi", None, None, "", "not evaluated in seeds 0, 1, 2") in drawn.rows
    path = folder / "runs" / "rope" / "seed2" / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 410, "eval_loss": NaN}\n')
    assert curve(results.read(folder).scheme("rope")) == "not finite in seed 2"
    assert figures.loss_by_step(results.read(folder)) is None
    evaluated(folder, {"rope": falling(0.02)})
    (folder / "runs" / "rope" / "seed1" / "evaluation.json").unlink()
    assert curve(results.read(folder).scheme("rope")) == "missing seed 1"


def test_work_counts_steps_by_their_learning_rate(fake):
    folder = fake(["rope"], seeds=(0,), speed=False)
    rows = [(0, 0.0, 3.0), (10, 0.1, 2.9), (20, 0.1, 2.8), (30, 0.0, 2.7)]
    keys = ("step", "learning_rate", "eval_loss")
    lines = "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)
    path = folder / "runs" / "rope" / "seed0" / "metrics.jsonl"
    path.write_text(lines)
    np.testing.assert_allclose(curve(results.read(folder).scheme("rope")).work, [0, 5, 15, 20])
    path.write_text(lines.replace("learning_rate", "other"))
    np.testing.assert_allclose(curve(results.read(folder).scheme("rope")).work, [0, 10, 20, 30])
