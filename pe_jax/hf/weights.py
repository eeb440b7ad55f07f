"""Where a released model's position weights go in `Params`: the table of `pe_jax.hf.params`.

`WEIGHTS` lists (from types.toml), per model type, names of a state dict, the entry of `Params` and
the function of this file that turns one into the other, which can be borrowed alone.
Rotations, ALiBi and sinusoids have no weights. H heads, E head width, D model width.
"""

import dataclasses
import fnmatch
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.base import Dims, Encoding, Params
from pe_jax.encodings.registry import ENCODINGS
from pe_jax.encodings.sums import Sum, parts_of
from pe_jax.hf import parents
from pe_jax.hf.layers import LayerEncoding
from pe_jax.numerics.arrays import require_array
from pe_jax.validation import shown


def same(x):
    """As it is."""
    return x


def transposed(x):
    """Transposed."""
    return x.T


def flat(x):
    """Flattened to [H]."""
    return x.reshape(-1)


def rows(table, first_row: int = 0):
    """The rows from that of position 0 on."""  # tools.cookbook writes its number
    return table.reshape(-1, table.shape[-1])[first_row:]


def patch_grid(table, *, height: int, width: int):
    """The rows of the patches as a grid [height, width, D]."""
    return table.reshape(-1, table.shape[-1])[-height * width :].reshape(height, width, -1)


def before_patches(table, *, height: int, width: int):
    """The rows before those of the patches."""
    return table.reshape(-1, table.shape[-1])[: -height * width]


def swapped(r):
    """By head: [D, H, E] becomes [H, D, E]."""
    return r.transpose(1, 0, 2)


def by_head(weight, bias=None, *, head_dim: int):
    """By head, [H, D + 1, E]; the last input is for the bias, or zeros."""
    bias = jnp.zeros_like(weight[:, 0]) if bias is None else bias
    both = jnp.concatenate([weight, bias[:, None]], axis=1)
    return both.reshape(-1, head_dim, both.shape[1]).transpose(0, 2, 1)


def with_ones(table):
    """With a column of ones: [2·span, D + 1]."""
    return jnp.pad(table, ((0, 0), (0, 1)), constant_values=1)


def normed_with_ones(table, weight, bias, *, layer_norm_eps: float = 1e-7):
    """Through the LayerNorm, then with a column of ones: [2·span, D + 1]."""
    return with_ones(jax.nn.standardize(table, epsilon=layer_norm_eps) * weight + bias)


def sines_first(weight, *, head_dim: int):
    """By head, [H, D, E], the inputs 0, 2, 4, … (sines) before 1, 3, 5, … (cosines)."""
    apart = jnp.concatenate([weight[:, 0::2], weight[:, 1::2]], axis=1)
    return apart.reshape(-1, head_dim, apart.shape[1]).transpose(0, 2, 1)


def profile_states(weight, scale=None, *, width: int):
    """By head, [D, H, C], times a scale [H, C] where there is one."""
    rows = weight.reshape(-1, width, weight.shape[1])
    return (rows if scale is None else scale[..., None] * rows).transpose(2, 0, 1)


def no_bias(weight):
    """Zeros: [H]."""
    return jnp.zeros(len(weight))


def mirrored(table, *, left: int = 64, right: int = 8):
    """Reversed, the shorter side's last row repeated; released rows are key - query + `left`."""
    reach = max(left, right)
    return table[None, np.clip(np.arange(reach, -reach - 1, -1), -left, right) + left]


@dataclasses.dataclass(frozen=True)
class Weight:
    """One entry of `Params`."""

    to: str  # where it goes: "shared.table", "layer.w_r"
    # of the arrays in a state dict, without what comes before (`model.`, `deberta.`). `{layer}` is
    # its number in its stack, `{stack}` "encoder" or "decoder", `*` anything; Swin's, of stages and
    # blocks, are all matched, and the layer's is taken in their order
    names: tuple[str, ...]
    how: Callable = same  # the function that takes them
    part: type[Encoding] = Encoding  # the scheme that it belongs to, where the encoding is a sum
    when: str = ""  # a field of `Extras` that must be True, or, after "not ", False

    def holds(self, layer: LayerEncoding, part: Encoding) -> bool:
        """Whether that part of such a layer has this weight."""
        flag = self.when.removeprefix("not ")
        wanted = not flag or getattr(layer.extras, flag) == (flag == self.when)
        side, _, key = self.to.partition(".")
        return wanted and isinstance(part, self.part) and key in getattr(_entries(part), side)


def _entries(part: Encoding) -> Params:
    """Names of the entries of an encoding's `Params`, with shapes of arbitrary sizes."""
    return jax.eval_shape(lambda: part.init(jax.random.key(0), Dims(16, 2, 2, 8)))


def _loaded(entry: Mapping[str, Any]) -> Weight:
    """An entry of types.toml."""
    how, part = globals()[entry.get("how", "same")], ENCODINGS.get(entry.get("part", ""), Encoding)
    return Weight(entry["to"], tuple(entry["names"]), how, part, entry.get("when", ""))


WEIGHTS = {
    model_type: tuple(map(_loaded, entries))
    for model_type, entries in parents.DATA["weights"].items()
}
LIKE = parents.listed("weights_alike")
WEIGHTS |= {other: WEIGHTS[model_type] for other, model_type in LIKE.items()}


def listed(model_type: str, layer: LayerEncoding) -> list[tuple[Weight, ...]]:
    """Which weights there are, for each part of the layer's encoding.

    Raises:
      ValueError: an encoding with parameters whose names are not listed here.
    """
    weights = []
    for part in parts_of(layer.encoding or Encoding()):
        of_part = tuple(w for w in WEIGHTS.get(model_type, ()) if w.holds(layer, part))
        needed = {f"shared.{key}" for key in _entries(part).shared}
        needed |= {f"layer.{key}" for key in _entries(part).layer}
        if missing := needed - {w.to for w in of_part}:
            raise ValueError(f"{model_type!r}: the names of {sorted(missing)} are not known here")
        weights.append(of_part)
    return weights


def load(
    layer: LayerEncoding,
    index: int,
    count: int,
    config: Mapping[str, Any],
    state: Mapping[str, Any],
) -> Params:
    """`Params` of a layer, the `index`-th of its stack's `count`: see `pe_jax.hf.params`."""
    settings = {"head_dim": layer.head_dim, "first_row": layer.first_row}
    settings |= {"left": config.get("left_max_position_embeddings")}
    settings |= {"right": config.get("right_max_position_embeddings")}
    settings |= {"layer_norm_eps": config.get("layer_norm_eps")}
    settings = {name: x for name, x in settings.items() if x is not None}
    loaded = []
    all_parts = parts_of(layer.encoding or Encoding())
    for part, weights in zip(all_parts, listed(str(config.get("model_type")), layer), strict=True):
        sizes = {name: getattr(part, name, None) for name in ("height", "width")}
        entries: dict[str, dict[str, jax.Array]] = {side: {} for side in Params._fields}
        for weight in weights:
            side, _, key = weight.to.partition(".")
            arrays = []
            for name in weight.names:
                every = side == "layer" and "{layer}" not in name
                name = name.format(stack=layer.stack, layer=index)
                matched, wanted = _match(name, state), count if every else 1
                if len(matched) != wanted:
                    what = f"{len(matched)} such arrays {shown(matched, 200)}, not {wanted}"
                    raise ValueError(f"{name}: the state dict has {what}; pass that of one model")
                arrays.append(_array(name, state[matched[index if every else 0]]))
            named = {**sizes, **settings}
            options = {n: named[n] for n in inspect.signature(weight.how).parameters if n in named}
            entries[side][key] = weight.how(*arrays, **options)
        loaded.append(Params(**entries))
    if isinstance(layer.encoding, Sum):
        return Params(*(tuple(x) for x in zip(*loaded, strict=True)))
    return loaded[0]


def _match(name: str, state: Mapping[str, Any]) -> list[str]:
    """The keys of that name, in the order of their numbers."""
    pattern = re.compile(rf"(?:.*\.)?{fnmatch.translate(name)}")
    return sorted(filter(pattern.fullmatch, state), key=_natural)


def _array(name: str, array: Any) -> jax.Array:
    if hasattr(array, "detach"):  # PyTorch's: NumPy has no bfloat16
        array = array.detach().float().numpy()
    require_array(name, array, 1)
    return jnp.asarray(array, jnp.float32)


def _natural(name: str) -> list[tuple[int, str]]:
    """Orders names by their numbers: layer 2 before layer 10."""
    return [(int(x or 0), y) for x, y in re.findall(r"(\d*)(\D*)", name)]
