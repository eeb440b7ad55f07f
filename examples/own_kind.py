"""A kind of term of your own: one class with a formula, and every engine but kernels runs it.

    python -m examples.own_kind

prints by how far tiles, a ring (with gradients) and decoding are from the dense engine: rounding.
"""

import dataclasses

import jax
import jax.numpy as jnp

import pe_jax
from examples.own_encoding import DIMS
from pe_jax.encodings.terms import DistanceScores, kind
from pe_jax.engines.sharded.layout import BlockPermuted


@kind
class PeriodicBias(DistanceScores):
    """A learned bias of the distance modulo a period: `table` is [H, period]."""

    table: jax.Array

    def at(self, distance):  # [H, *n] for distances [*n]
        return self.table[:, distance % self.table.shape[1]]


@dataclasses.dataclass(frozen=True)
class Weekly(pe_jax.Encoding):
    """Learns a bias for each day of the week between two tokens."""

    def init_layer(self, key, dims):
        return {"table": jax.random.normal(key, (dims.heads, 7))}

    def terms(self, params, dims):
        return (PeriodicBias(params.layer["table"]),)


def differences(length: int = 130) -> dict[str, float]:
    """The largest differences from the dense engine, by what runs."""
    encoding, (key, *keys) = Weekly(), jax.random.split(jax.random.key(0), 4)
    params, heads = encoding.init(key, DIMS), (DIMS.heads, DIMS.kv_heads, DIMS.kv_heads)
    options = {"encoding": encoding, "dims": DIMS}
    qkv = [
        jax.random.normal(key, (1, length, n, DIMS.head_dim))
        for key, n in zip(keys, heads, strict=True)
    ]

    def outcome(params, qkv, **how):
        def loss(params, qkv):
            out = pe_jax.attention(*qkv, params=params, **options, **how)
            return jnp.sin(out).sum(), out

        grads, out = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, qkv)
        return jax.tree.leaves((out, grads))

    auto = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2,), ("seq",), (auto,), devices=jax.devices()[:2])
    ring = BlockPermuted(mesh, balanced=False)  # rows lie in order
    want = outcome(params, qkv, implementation="dense")
    tiles = outcome(params, qkv, implementation="tiled")
    runs = {"tiles": tiles, "ring": outcome(params, qkv, layout=ring)}
    cache = pe_jax.cache.empty(encoding, 1, length, DIMS, params=params)
    first, last = ([x[:, :-1] for x in qkv], [x[:, -1:] for x in qkv])
    _, cache = pe_jax.cache.extend(cache, *first, params=params, **options)
    step, _ = pe_jax.cache.extend(cache, *last, params=params, **options)
    gaps = {
        name: [jnp.abs(a - b).max() for a, b in zip(run, want, strict=True)]
        for name, run in runs.items()
    }
    gaps["decoding"] = [jnp.abs(step - want[0][:, -1:]).max()]
    return {name: float(max(gap)) for name, gap in gaps.items()}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    print(", ".join(f"{name} {gap:.0e}" for name, gap in differences().items()))
