"""Compiling for slices that are not there: what is read off a program, and docs/scale.md."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from configs.scale import SIZES, get_config
from experiments.measuring import flops, hlo_trip_counts
from pe_jax.models.config import ModelConfig
from pe_jax.training import sharding
from pe_jax.training.config import MeshConfig
from tests import tiny
from tests.test_tpu_kernels import lowered
from tools import compile_tpu, hlo, tpu_slice

# As libtpu writes a module: computations before their callers, three notations of groups.
TEXT = """\
HloModule jit_f, is_scheduled=true

%inner (p: bf16[8,4]) -> bf16[8,4] {
  %p = bf16[8,4]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  ROOT %exp = bf16[8,4]{1,0} exponential(%p), backend_config={"estimated_cycles":"7777"}
}

%all-reduce-scatter.1 (p.1: bf16[8,4]) -> bf16[4,4] {
  %all-reduce.8 = bf16[8,4]{1,0:T(8,128)(2,1)} all-reduce(%p.1), replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %slice = bf16[4,4]{1,0} dynamic-slice(%all-reduce.8)
}

%tile (arg: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %fusion.9 = bf16[8,4]{1,0} fusion(%x), kind=kLoop, calls=%inner, backend_config={"estimated_cycles":"100"}
  ROOT %tuple.1 = (s32[], bf16[8,4]{1,0}) tuple(%i, %fusion.9)
}

%tile_end (arg.1: (s32[], bf16[8,4])) -> pred[] {
  ROOT %lt = pred[]{:T(512)} compare(%i.1, %end), direction=LT
}

%layer (arg.2: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %gather = bf16[16,4]{1,0} all-gather(%y), replica_groups=[2,4]<=[8], dimensions={0}
  %while.2 = (s32[]{:T(128)}, bf16[8,4]{1,0}) while(%t), condition=%tile_end, body=%tile
  %while.3 = (s32[]{:T(128)}, bf16[8,4]{1,0}) while(%while.2), condition=%tile_end, body=%tile
  %fusion.4 = bf16[4,4]{1,0} fusion(%z), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %tuple.2 = (s32[], bf16[8,4]{1,0}) tuple(%i, %g)
}

%layer_end (arg.3: (s32[], bf16[8,4])) -> pred[] {
  %constant.2 = s32[]{:T(128)} constant(20)
  ROOT %lt.1 = pred[]{:T(512)} compare(%i.2, %constant.2), direction=LT
}

ENTRY %main (p.2: bf16[8,4]) -> bf16[8,4] {
  %while.1 = (s32[]{:T(128)}, bf16[8,4]{1,0}) while(%t.1), condition=%layer_end, body=%layer
  %start = (f32[4]{0}, f32[8]{0}) all-gather-start(%q), replica_groups=mesh['a'=2,'b'=4] {'a'}
  ROOT %sum = f32[8]{0} all-reduce(%q), replica_groups=[1,4]<=[4], to_apply=%add
}
"""  # noqa: E501


def test_what_runs_in_loops_counts_as_often_as_it_runs():
    found = hlo.summarize(TEXT, (3, 2))
    assert (found.loops, found.unknown) == (2, 0)
    assert found.cycles == 20 * (3 + 2) * 100  # and what is fused has no cycles of its own
    as_tuples = {k: dataclasses.astuple(c) for k, c in found.collectives.items()}
    assert as_tuples == {
        "all-gather": (21, 20 * 128 + 32, 20 * 128 * 3 / 4 + 32 / 2),
        "reduce-scatter": (20, 20 * 64, 20 * 64 / 2),
        "all-reduce": (1, 32, 2 * 32 * 3 / 4),
    }
    lost = hlo.summarize(TEXT.replace('"100"', f'"{2**63 - 1}"'), (3, 2))
    assert (lost.cycles, lost.unpriced) == (0, 1)
    once = hlo.summarize(TEXT)
    assert (once.loops, once.unknown, once.cycles) == (2, 2, 20 * 2 * 100)
    assert hlo.summarize(TEXT, (2,)).unknown == 1


def test_products_count_by_the_length_of_a_scan_and_the_turns_of_a_loop():
    def f(x, n):
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, jnp.ones((5, 8, 8)))
        x = jax.lax.cond(n > 0, lambda x: x, lambda x: x @ x.T @ x, x)
        x = jax.lax.fori_loop(0, n, lambda i, x: jax.checkpoint(lambda x: x @ jnp.eye(8))(x), x)
        return jax.lax.fori_loop(0, n, lambda i, x: x @ jnp.eye(8), x)

    traced = jax.jit(f).trace(jax.ShapeDtypeStruct((4, 8), jnp.float32), 3)
    one = 2 * 4 * 8 * 8
    branch = 2 * 2 * 4 * 4 * 8
    assert flops.count(traced.jaxpr, (7, 2)) == (5 * one + branch + (7 + 2) * one, 0)
    assert flops.count(traced.jaxpr) == (5 * one + branch + 2 * one, 0)


@pytest.mark.parametrize("spec, declared", [("t5", True), ("rope", False)])
def test_kernels_count_by_what_they_declare_or_by_their_grid(spec, declared):
    traced = lowered(spec, 2048, False)  # 8 heads of 64, blocks of 512: 10 of 16 tiles are visited
    whole, tile = 16 * 8, 4 * 512 * 512 * 64
    found = flops.count(traced.jaxpr, (), 10 / 16)
    np.testing.assert_allclose(found.kernels, 10 / 16 * whole * tile, rtol=0.05)
    everything = flops.count(traced.jaxpr)
    assert (everything == found) == declared


def whole_and_partial(q, k, rows: int, columns: int, window: int = 0):
    """Tiles a row, on the mean, in which every pair is seen, and in which some are."""
    i, j = q[:, None], k[None]
    seen = (j <= i) & ((i - j < window) if window else True)
    tiles = seen.reshape(len(q) // rows, rows, len(k) // columns, columns)
    whole = tiles.all((1, 3))
    return whole.sum(1).mean(), (tiles.any((1, 3)) & ~whole).sum(1).mean()


def sizes_of_tiles(monkeypatch) -> list[tuple[int, int]]:
    """Rows and columns of the tiles that are chosen from here on."""
    sizes, make_plan = [], hlo_trip_counts.make_plan

    def spy(*args, **options):
        plan = make_plan(*args, **options)
        sizes.append((plan.grid.rows, plan.grid.columns))
        return plan

    monkeypatch.setattr(hlo_trip_counts, "make_plan", spy)
    return sizes


@pytest.mark.parametrize("spec, window", [("rope", 0), ("rope", 700), ("fox", 0), ("learned", 0)])
def test_turns_of_the_loops_over_tiles_are_those_of_the_mask(spec, window, monkeypatch):
    model = ModelConfig(encoding=spec, vocab=9, width=64, heads=4, window=window)
    devices = [type("Chip", (), {"platform": "tpu"})()] * 4
    sizes = sizes_of_tiles(monkeypatch)
    with tpu_slice.tracing_for(devices):
        assert jax.default_backend() == "tpu"
        found = hlo_trip_counts.tiles(model, 8, 2048, devices=4)
    assert jax.default_backend() == "cpu"
    (rows, columns), order = sizes[0], np.arange(2048)
    whole, partial = whole_and_partial(order, order, rows, columns, window)
    np.testing.assert_allclose(sum(found.turns), whole + partial)
    np.testing.assert_allclose(found.share, (whole + partial) * columns / 2048)
    if spec == "rope":
        np.testing.assert_allclose((found.turns[0], sum(found.turns[1:])), (whole, partial))


@pytest.mark.parametrize("window, hops", [(0, 3), (300, 1)])
def test_turns_on_a_ring_are_the_mean_over_its_hops(window, hops, monkeypatch):
    model = ModelConfig(encoding="rope", vocab=9, width=64, heads=4, window=window)
    ring = sharding.layout(model, sharding.make_mesh(MeshConfig(seq=4, data=2), jax.devices()))
    sizes = sizes_of_tiles(monkeypatch)
    found = hlo_trip_counts.tiles(model, 8, 2048, ring)
    runs = np.asarray(ring.order(2048)).reshape(4, len(ring.blocks) // 4, -1)
    met = [(runs[i], runs[(i - back) % 4]) for i in range(4) for back in range(hops + 1)]
    pairs = [(q, k) for own, other in met for q in own for k in other]
    want = np.mean([whole_and_partial(*pair, *sizes[0], window) for pair in pairs], 0)
    np.testing.assert_allclose(found.turns, want)


def test_products_inside_shard_map_count_on_every_device():
    mesh = sharding.make_mesh(MeshConfig(seq=4, data=2), jax.devices())
    how = {"mesh": mesh, "in_specs": PartitionSpec("data"), "out_specs": PartitionSpec("data")}
    f = jax.jit(jax.shard_map(lambda x: x @ x.T @ x, **how))
    traced = f.trace(jax.ShapeDtypeStruct((8, 16), jnp.float32))
    assert flops.count(traced.jaxpr).total == 8 * 2 * 2 * 4 * 4 * 16


def test_a_program_that_does_not_fit_says_what_it_needs():
    text = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.10G of 15.75G hbm."
    assert compile_tpu.refused(text) == {
        "status": "does not fit",
        "why": "needs 20.10G of 15.75G per chip",
    }
    assert compile_tpu.refused("INTERNAL:\nno")["why"] == "INTERNAL: no"


@pytest.mark.parametrize("name", ["v5e", "v5e:16", "v9:2x2", "v5e:16x16;rm", "v5p:"])
def test_a_slice_that_cannot_be_names_the_fix(name):
    with pytest.raises(ValueError, match="write CHIP:SHAPE, as v5e:16x16"):
        tpu_slice.check(name)


def test_caches_are_divided_as_batch_and_heads_are():
    mesh = sharding.make_mesh(MeshConfig(data=2, model=2), jax.devices()[:4])
    built, _ = tiny.build(tiny.config("deberta+rope,fox,path", layers=3))
    cache = jax.eval_shape(lambda: built.init_cache(4, 600))
    specs = jax.tree.map(lambda s: s.spec, sharding.cache_shardings(cache, mesh))
    P = jax.sharding.PartitionSpec
    rows = P(("data", "fsdp"), "model")
    assert {specs[0].k, specs[0].v, specs[0].k_raw, *specs[1].states} == {rows}
    assert specs[2].states[0] == (rows, rows, P(("data", "fsdp")))
    assert specs[0].positions == P(("data", "fsdp")) and specs[0].length == P()
    built, _ = tiny.build(tiny.config("gated_delta,rope"))
    state, inputs, segment = (
        x.spec for x in sharding.cache_shardings(built.init_cache(4, 9), mesh)[0]
    )
    assert state == rows and inputs == P(("data", "fsdp"), None, None, "model")
    assert segment == P(("data", "fsdp"))


# The page.


def programs() -> list[dict[str, str]]:
    """The lines of the page's tables by column, with what they leave out."""
    lines, head = [], []
    for line in Path(__file__).parents[1].joinpath("docs/scale.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if "mesh" in cells:
            head = cells
        elif line.startswith("| "):
            same = {"size": "1B", "context": "32,768", "chips": "64", "encoding": "rope"}
            lines.append(same | dict(zip(head, cells, strict=True)))
    return lines


def test_every_program_of_the_page_is_a_model_that_fits_its_mesh():
    lines = programs()
    assert len(lines) == 3**3 + 8 + 8 and {line["size"] for line in lines} == {*SIZES}
    for line in lines:
        context, chips = (int(line[x].replace(",", "")) for x in ("context", "chips"))
        sizes = dict(
            zip(("data", "fsdp", "seq", "model"), map(int, line["mesh"].split(" × ")), strict=True)
        )
        assert np.prod([*sizes.values()]) == chips, line
        auto = (jax.sharding.AxisType.Auto,) * len(sizes)  # JAX 0.12 takes Explicit axes otherwise
        mesh = jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes), auto)
        model = dataclasses.replace(get_config(line["size"]).model, encoding=line["encoding"])
        model.check()
        rows = max(1, 32768 // context) * sizes["data"] * sizes["fsdp"]
        assert rows * context == max(32768 * chips, context), line
        sharding.check_fits(model, rows, mesh, {"length": context})  # pyright: ignore


def test_the_sizes_are_what_their_names_say():
    for name, low, high in (("100M", 0.9e8, 1.2e8), ("1B", 0.9e9, 1.2e9), ("7B", 6e9, 7.5e9)):
        _, shapes = tiny.abstract_terms(get_config(name).model)
        assert low < sum(x.size for x in jax.tree.leaves(shapes)) < high


def test_training_and_decoding_compile_for_a_slice(tmp_path):
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("no libtpu here: pip install -e '.[tpu]', or make tpu")
    command = [sys.executable, "-m", "tools.compile_tpu", "--config=configs/smoke.py"]
    command += ["--topology=v5e:2x2", f"--out={tmp_path}", "--config.length=32"]
    command += ["--config.eval.lengths=32"]
    command += ["--config.mesh.model=2", "--encodings=t5+rope"]
    found = subprocess.run(command, env=os.environ, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
    rows = json.loads((tmp_path / "compiled.json").read_text())["programs"]
    assert [row["program"] for row in rows] == ["train", "decode"]
    for row in rows:
        assert row["fits"] and row["compute_seconds"] > 0 and row["exchange_seconds"] > 0
        assert row["loops"]["counted_once"] == 0 and "all-reduce" in row["collectives"]
