"""Which run is next, and the same work run again from its results."""

from pathlib import Path

from experiments.running.schedule.pending import Begun, Pending, Place
from experiments.running.schedule.work import Run, Work


def work(name, *counts):
    """Runs of which so many go together, and nothing between two of them."""

    def runs():
        found = []
        for k, count in enumerate(counts):
            found += yield [Run(f"{name} {k}.{n}", Path("file"), 1, dict) for n in range(count)]
        return found

    return Work(name, [1] * sum(counts), runs())


def pending(*works, shared, stopped=lambda: False):
    return Pending(works, shared, stopped)


def label(runs, place):
    return runs.run(place).label


def test_each_taker_keeps_to_its_work_until_that_ends():
    runs = pending(work("a", 2, 0, 1), work("b", 1), work("c", 1), shared=False)
    first, other = runs.take("x"), runs.take("y")
    assert [label(runs, first), label(runs, other)] == ["a 0.0", "b 0.0"]
    runs.give(other, {"n": 0})
    third = runs.take("y")
    assert label(runs, third) == "c 0.0"
    runs.give(third, {"n": 0})
    assert runs.take("y") is None and not runs.over()  # what is left is the other's
    taken = [label(runs, first)]
    for n in range(3):
        runs.give(first, {"n": n})
        if (first := runs.take("x")) is not None:
            taken.append(label(runs, first))
    assert taken == ["a 0.0", "a 0.1", "a 2.0"] and runs.over()
    zero = {"n": 0}
    assert runs.outcomes() == {"a": [zero, {"n": 1}, {"n": 2}], "b": [zero], "c": [zero]}


def test_shared_runs_go_to_whoever_is_free_and_come_back_if_one_is_lost():
    runs = pending(work("a", 2, 1), shared=True)
    first, second = runs.take("x"), runs.take("y")
    assert [first.number, second.number] == [0, 1]
    runs.back(first)  # "x" is lost
    assert runs.take("y") == first
    runs.give(second, {"n": 1})
    runs.give(first, {"n": 0})  # results come in any order
    third = runs.take("y")
    assert third == Place("a", ([{"n": 0}, {"n": 1}],), 0)


def test_after_a_signal_nothing_is_taken():
    runs = pending(work("a", 1), work("b", 1), shared=True, stopped=lambda: True)
    assert runs.take("x") is None and runs.outcomes() == {}


def test_a_place_is_found_in_another_process():
    """Which has run nothing of this work, and knows only the results."""
    here = Begun(work("a", 2, 0, 1, 1))
    there = Begun(work("a", 2, 0, 1, 1))
    for n in (0, 1):
        here.give(n, {"n": n})
    place = Place("a", tuple(here.before), 0)
    assert there.at(place).label == here.runs[0].label == "a 2.0"
    here.give(0, {"n": 2})
    assert there.at(Place("a", tuple(here.before), 0)).label == "a 3.0"
