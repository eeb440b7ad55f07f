"""The table of tile sizes, and the command that measures it."""

import json
import math

import pytest

from experiments.measuring import workloads
from pe_jax.engines.tiled import tiles
from tools import tile_sizes

A, B, C = (64, 64), (256, 256), (512, 512)


def test_the_table_has_a_row_for_any_length():
    rows = tiles.measured()
    assert rows[-1].length is None
    lengths = [row.length or 0 for row in rows[:-1]]
    assert 0 not in lengths and lengths == sorted({*lengths})
    for row in rows:
        assert all(n % tiles.NARROWEST == 0 for n in (*row.near, *row.far))
    assert set(json.loads(tile_sizes.PATH.read_text("utf-8"))) == {"command", "machine", "sizes"}


def test_sides_follow_the_length_and_the_reach(monkeypatch):
    rows = (tiles.Measured(512, A, B), tiles.Measured(2048, B, C), tiles.Measured(None, C, C))
    monkeypatch.setattr(tiles, "measured", lambda: rows)
    assert [tiles.fastest(n, 0) for n in (1, 512, 513, 2049, 2**20)] == [A, A, B, C, C]
    assert [tiles.fastest(512, reach) for reach in (64, 65, 1000)] == [A, B, B]


def test_the_cheapest_shape_is_chosen_and_that_of_longer_rows_kept_within_the_margin():
    times = [{A: 1.0, B: 2.0, C: 4.0}, {A: 4.0, B: 2.0, C: 4.0}]
    each = tile_sizes.costs(times)
    assert each[A] == pytest.approx(math.sqrt(2)) and each[B] == pytest.approx(math.sqrt(2))
    near = {512: {A: 1.0, C: 1.5}, 1024: {A: 1.0, C: 1.02}, 4096: {A: 1.2, C: 1.0}}
    rows = tile_sizes.choose({n: {"near": x, "far": {A: 2.0, C: 1.0}} for n, x in near.items()})
    assert rows == [
        {"length": 512, "near": [*A], "far": [*C]},
        {"length": None, "near": [*C], "far": [*C]},
    ]


def test_what_is_measured_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(tile_sizes, "SHAPES", ((16, 16), (32, 32), (64, 64)))
    sizes = workloads.Sizes(1, 2, 8, "float32", True)
    times = tile_sizes.measure("t5", 32, sizes, 3)
    assert set(times) == {(16, 16), (32, 32)} and all(t > 0 for t in times.values())
    rows = tile_sizes.choose({32: {"near": times, "far": times}})
    tile_sizes.write(rows, tmp_path / "tile_sizes.json")
    monkeypatch.setattr(tiles, "__file__", str(tmp_path / "tiles.py"))
    (row,) = tiles.measured.__wrapped__()
    assert row.length is None and row.near == row.far == min(times, key=times.__getitem__)
