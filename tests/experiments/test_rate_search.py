"""The search for learning rates: a grid, then the neighbours of the best; in a program, resumed."""

import dataclasses
import json
import math

import pytest

from experiments.programs import compare, tasks
from experiments.reporting import learning_rates, results
from experiments.running import rate_search
from experiments.running.configs.compare import CompareConfig
from experiments.running.configs.tasks import TasksConfig
from pe_jax.training.config import EvalConfig
from tests import tiny

GRID = [(rate, multiple) for rate in (0.005, 0.01, 0.02) for multiple in (1.0, 5.0)]


def bowl(rate: float, multiple: float):
    """A loss with its least at these."""
    return lambda pair: math.log(pair[0] / rate) ** 2 + math.log(pair[1] / multiple) ** 2


def test_a_best_inside_the_grid_asks_for_nothing_more():
    inside = [*GRID, *((rate, 25.0) for rate in (0.005, 0.01, 0.02))]
    assert [*rate_search.search(inside, bowl(0.01, 5), 9)] == inside
    assert [*rate_search.search([(0.01, 1.0)], bowl(9, 9), 9)] == [
        (0.01, 1.0)
    ]  # one value has no neighbours


@pytest.mark.parametrize(
    "least, first",
    [
        ((0.04, 5.0), [(0.04, 5.0), (0.02, 25.0)]),
        ((0.0025, 1.0), [(0.0025, 1.0), (0.005, 0.2)]),
    ],
)
def test_past_an_edge_the_neighbours_of_the_best_are_tried_by_the_ratio_there(least, first):
    losses = rate_search.search(GRID, bowl(*least), 1)
    assert [*losses][len(GRID) :] == first  # 0.04, not 0.04000000000000001
    assert rate_search.best(losses) == least
    more = rate_search.search(GRID, bowl(*least), 2)
    assert len(more) > len(losses)
    best = rate_search.best(more)
    assert all(pair in more for pair in rate_search.neighbours(more, best))


def test_the_search_follows_the_best_and_ends_after_its_rounds():
    losses = rate_search.search(GRID, bowl(10.0, 5.0), 3)
    assert max(losses)[0] == 0.16  # 0.04, 0.08, 0.16
    endless = rate_search.search(GRID, lambda pair: math.inf, 2)
    assert rate_search.best(endless) == min(endless)


def change(**fields) -> CompareConfig:
    return dataclasses.replace(
        CompareConfig(
            data="synthetic:copy",
            encodings=("nope", "learned(length={length})"),
            seeds=2,
            workers=1,
            length=tiny.L,
            batch=tiny.R,
            steps=2,
            rate_steps=2,
            log_every=1,
            model=tiny.config(vocab=0),
            rates=(1e-7, 2e-7),
            rate_rounds=2,
            eval=EvalConfig(lengths=(tiny.L,), windows=6, stride=tiny.L),
            timing_repeats=5,
        ),
        **fields,
    )


def test_a_comparison_tries_them_uses_the_best_and_reports_what_it_read(tmp_path, monkeypatch):
    """Where more rates help, it goes on to the greatest; run again, it trains nothing."""
    trained = []
    original = compare.train

    def counted(config, *args, **kwargs):
        trained.append(config.workdir)
        return original(config, *args, **kwargs)

    monkeypatch.setattr(compare, "train", counted)
    for rest in ("measure_speed", "show"):
        monkeypatch.setattr(compare, rest, lambda *_: None)
    config = change(workdir=str(tmp_path), encodings=("nope",))
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, warmup=0))
    compare.main(config)
    found = results.read(tmp_path)
    (rates,) = learning_rates.rates(found)
    tried = sorted(rate for rate, _ in rates.losses)
    assert tried == [1e-7, 2e-7, 4e-7, 8e-7] and rates.used == (8e-7, 1.0)
    assert rates.remark == "an edge of what was tried: 1.6e-06 may be better"
    assert "only where the best was at an edge" in learning_rates.rate_words(found)
    seed = json.loads((tmp_path / "runs" / "nope" / "seed0" / "evaluation.json").read_text())
    assert seed["learning_rate"] == 8e-7
    before = len(trained)
    compare.main(config)
    assert len(trained) == before
    with pytest.raises(SystemExit):  # its runs were chosen by these rounds
        compare.main(dataclasses.replace(config, rate_rounds=0))


def test_a_task_tries_them_too(tmp_path):
    config = TasksConfig(
        workdir=str(tmp_path),
        encodings=("nope",),
        positions=("contiguous",),
        tasks=("parity_check",),
        length=4,
        lengths=(6,),
        seeds=1,
        steps=3,
        batch=4,
        test=8,
        workers=1,
        rates=(1e-7, 2e-7),
        rate_rounds=1,
        model=tiny.config(vocab=0, causal=False),
    )
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, warmup=0))
    tasks.main(config)
    assert len({path.parts[-2] for path in tmp_path.rglob("seed0.json")}) == 3
