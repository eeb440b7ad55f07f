"""The search for learning rates: a grid, then the neighbours of the best.

test_compare.py and test_tasks.py have it in programs.
"""

import math

import pytest

from experiments.running.schedule import rate_search

GRID = [(rate, multiple) for rate in (0.005, 0.01, 0.02) for multiple in (1.0, 5.0)]


def search(pairs, loss, rounds: int) -> dict:
    losses: dict = {}
    while missing := rate_search.untried(pairs, losses, rounds):
        losses |= {pair: loss(pair) for pair in missing}
    return losses


def bowl(rate: float, multiple: float):
    """A loss with its least at these."""
    return lambda pair: math.log(pair[0] / rate) ** 2 + math.log(pair[1] / multiple) ** 2


def test_a_best_inside_the_grid_asks_for_nothing_more():
    inside = [*GRID, *((rate, 25.0) for rate in (0.005, 0.01, 0.02))]
    assert [*search(inside, bowl(0.01, 5), 9)] == inside
    assert [*search([(0.01, 1.0)], bowl(9, 9), 9)] == [(0.01, 1.0)]  # one value has no neighbours


@pytest.mark.parametrize(
    "least, first",
    [
        ((0.04, 5.0), [(0.04, 5.0), (0.02, 25.0)]),
        ((0.0025, 1.0), [(0.0025, 1.0), (0.005, 0.2)]),
    ],
)
def test_past_an_edge_the_neighbours_of_the_best_are_tried_by_the_ratio_there(least, first):
    losses = search(GRID, bowl(*least), 1)
    assert [*losses][len(GRID) :] == first  # 0.04, not 0.04000000000000001
    assert rate_search.best(losses) == least
    more = search(GRID, bowl(*least), 2)
    assert len(more) > len(losses)
    best = rate_search.best(more)
    assert all(pair in more for pair in rate_search.neighbours(more, best))


def test_the_search_follows_the_best_and_ends_after_its_rounds():
    losses = search(GRID, bowl(10.0, 5.0), 3)
    assert max(losses)[0] == 0.16  # 0.04, 0.08, 0.16
    endless = search(GRID, lambda pair: math.inf, 2)
    assert rate_search.best(endless) == min(endless)
