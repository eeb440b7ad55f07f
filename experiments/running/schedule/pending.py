"""Which run is next: of works in their order, for devices that take one run after another."""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.running.schedule.work import Run, Work

WAIT = 0.5  # seconds between looks at whether a signal came


Results = Mapping[Hashable, Sequence[Sequence[dict]]]  # of works, by name, as they were yielded


class Place(NamedTuple):
    """Where a run stands in a list of works, so that another process finds it there.

    Attributes:
      work: its name.
      before: results of the work's runs so far, together as they were yielded.
      number: among the runs that are yielded after these.
      earlier: results of the lists before this one: name of a work → as `before`.
    """

    work: Hashable
    before: tuple[Sequence[dict], ...]
    number: int
    earlier: tuple[Results, ...] = ()


class Begun:
    """A work of which some results are known.

    Attributes:
      before: results so far, together as their runs were yielded.
      runs: those that were yielded last; none at the end.
      left: the indices of those that nobody has taken.
      outcome: what came of the work, at its end.
    """

    def __init__(self, work: Work):
        self.work, self.outcome, self.before = work, None, list[Sequence[dict]]()
        self._yielded(None)

    def _yielded(self, results: Sequence[dict] | None) -> None:
        try:
            runs = self.work.runs
            self.runs = next(runs) if results is None else runs.send(results)
            while not self.runs:
                self.before.append([])
                self.runs = runs.send([])
        except StopIteration as end:
            self.runs, self.outcome = (), end.value
        self.left, self.found = deque(range(len(self.runs))), dict[int, dict]()

    def give(self, index: int, result: dict) -> None:
        """Takes the result of a run."""
        self.found[index] = result
        if len(self.found) == len(self.runs):
            self.known([self.found[k] for k in range(len(self.runs))])

    def known(self, results: Sequence[dict]) -> None:
        """Takes the results of all runs that were yielded last."""
        self.before.append(results)
        self._yielded(results)

    def at(self, place: Place) -> Run:
        """The run of a place, which is not before the results that are known here."""
        while len(self.before) < len(place.before):
            self.known(place.before[len(self.before)])
        return self.runs[place.number]


class Pending:
    """The runs that are left, for several takers at a time.

    A taker keeps to its work, as its runs share compiled programs. Where there is no other work for
    it, it takes runs of others' if they are `shared`. Nothing is taken any more once it is
    `stopped`; `earlier` is that of `Place`.
    """

    def __init__(
        self,
        works: Sequence[Work],
        shared: bool,
        stopped: Callable[[], bool],
        earlier: Sequence[Results] = (),
    ):
        self.works, self.shared, self.stopped = works, shared, stopped
        self.earlier = tuple(earlier)
        self.begun: dict[Hashable, Begun] = {}
        self.takers: dict[Hashable, Hashable] = {}
        self.changed = threading.Condition()

    def take(self, taker: Hashable) -> Place | None:
        """The next run of a taker, which may wait for it; None if there is none."""
        with self.changed:
            while self.open():
                name = self._chosen(taker)
                if name is not None:
                    self.takers[taker], work = name, self.begun[name]
                    return Place(name, tuple(work.before), work.left.popleft(), self.earlier)
                if not self.shared:
                    return None
                self.changed.wait(WAIT)
        return None

    def open(self) -> bool:
        """Whether something is to be done yet."""
        return not (self.stopped() or self.over())

    def over(self) -> bool:
        """Whether all works are at their end."""
        return len(self.begun) == len(self.works) and not any(w.runs for w in self.begun.values())

    def _chosen(self, taker: Hashable) -> Hashable | None:
        own = self.takers.get(taker)
        if own is not None and self.begun[own].left:
            return own
        while len(self.begun) < len(self.works):
            work = self.works[len(self.begun)]
            self.begun[work.name] = Begun(work)
            if self.begun[work.name].left:
                return work.name
        if self.shared:
            return next((name for name, work in self.begun.items() if work.left), None)
        return None

    def run(self, place: Place) -> Run:
        """The run of a place that was taken."""
        return self.begun[place.work].runs[place.number]

    def give(self, place: Place, result: dict | None) -> None:
        """Takes the result of a run; None if it was stopped, as all are."""
        with self.changed:
            if result is not None:
                self.begun[place.work].give(place.number, result)
            self.changed.notify_all()

    def back(self, place: Place) -> None:
        """Takes a run back that has no result, for anybody."""
        with self.changed:
            self.begun[place.work].left.appendleft(place.number)
            self.changed.notify_all()

    def outcomes(self) -> dict[Hashable, Any]:
        """What came of each work; None of one that is not at its end, which closes it."""
        for begun in self.begun.values():
            begun.work.runs.close()
        return {name: begun.outcome for name, begun in self.begun.items()}

    def results(self) -> Results:
        """All results."""
        return {name: begun.before for name, begun in self.begun.items()}
