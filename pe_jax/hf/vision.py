"""Families of models that see images: axial RoPE, windows of Swin, tables over patches."""

import dataclasses
import math
from collections.abc import Sequence

from pe_jax.encodings.base import Encoding
from pe_jax.encodings.cpb import CPB
from pe_jax.encodings.learned_grid import LearnedGrid
from pe_jax.encodings.rope_2d import RoPE2D
from pe_jax.encodings.rope_nd import RoPEND
from pe_jax.encodings.sinusoidal_2d import Sinusoidal2D
from pe_jax.encodings.sums import sum_of
from pe_jax.encodings.swin import Swin
from pe_jax.hf.keys import LAYERS, Keys
from pe_jax.hf.layers import ENCODER, Extras, Family, LayerEncoding, alike
from pe_jax.validation import is_int, is_real, require, shown

TABLES = ("num_position_embeddings", "pos_emb_height", "pos_emb_width", "posemb_grid_size")
TABLES += ("max_position_embeddings",)


def _sides(keys: Keys, name: str, default: int) -> tuple[int, int]:
    value = keys.get(name, default=default)
    sides = tuple(value) if isinstance(value, list | tuple) else (value, value)
    ok = len(sides) == 2 and all(is_int(n, 1) for n in sides)
    require(ok, name, value, "pass a number of pixels, or two")
    return sides[0], sides[1]


def _patches(keys: Keys, image: int, patch: int) -> tuple[int, int]:
    pixels, size = _sides(keys, "image_size", image), _sides(keys, "patch_size", patch)
    return pixels[0] // size[0], pixels[1] // size[1]


@dataclasses.dataclass(frozen=True)
class Axial(Family):
    """RoPE on rows and columns."""

    spectrum: str = "shared"  # of the frequencies
    base: float = 1e4  # where the config has none
    normalized: bool = False  # whether positions lie in [-1, 1]
    registers: bool = False  # whether a CLS token and `num_register_tokens` come first
    layers: tuple[str, ...] = LAYERS  # the key of the number of layers
    width: tuple[str, ...] = ("hidden_size",)  # the key of the width
    # the key of the layers that see more of the image than a window, or "" where all do
    windowed: str = ""
    axes: int = 2  # 3 for time, row and column
    layout: str = "half"  # of the pairs
    extras: Extras = Extras()  # of each layer

    def read(self, keys: Keys) -> list[LayerEncoding]:
        parameters = dict(keys.mapping("rope_parameters") or {})
        rope_type = parameters.pop("rope_type", parameters.pop("type", "axial"))
        fix = "rows and columns have rope_type 'axial'; for a scaling, rope_2d(scaling=…)"
        require(rope_type in ("axial", "default"), "rope_type", rope_type, fix)
        theta = parameters.pop("rope_theta", None)
        for key, value in parameters.items():
            fix = "an axial rotation has rope_theta alone; the nearest scheme is rope_2d"
            raise ValueError(f"{shown(key, 80)[1:-1]}={shown(value, 120)}: {fix}")
        flat = keys.get("rope_theta", default=self.base if theta is None else theta)
        require(theta in (None, flat), "rope_theta", flat, f"rope_parameters says {theta}")
        theta = flat
        require(is_real(theta) and theta > 1, "rope_theta", theta, "pass a number above 1")
        head_dim = keys.integer("head_dim", default=None)
        if head_dim is None:
            names = ("num_attention_heads", "num_heads")
            head_dim = keys.per_head(keys.integer(*self.width), names)
        fits = head_dim % 4 == 0 if self.axes == 2 else head_dim >= 2 * self.axes
        require(fits, "head_dim", head_dim, "axes rotate pairs: a multiple of 4, or 6 and more")
        more = {"spectrum": self.spectrum, "normalized": self.normalized, "layout": self.layout}
        encoding = RoPE2D(theta, **more) if self.axes == 2 else RoPEND(self.axes, theta, **more)
        keys.skip(*TABLES if self.extras.learned_positions else ())
        prefix = 0
        if self.registers:
            prefix = 1 + keys.integer("num_register_tokens", default=0, low=0)
            # of positions, in training
            keys.skip("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale")
        layer = LayerEncoding(encoding, head_dim, prefix=prefix, extras=self.extras, **ENCODER)
        count = keys.layers(*self.layers)
        if not self.windowed:
            return [layer] * count
        full = keys.get(self.windowed, default=[7, 15, 23, 31])
        if self.windowed == "layer_types":
            wide = [i % 4 == 3 or i == count - 1 for i in range(count)]
            types = ["full_attention" if x else "window_attention" for x in wide]
            types = keys.per_layer(
                self.windowed, count, ("full_attention", "window_attention"), types
            )
            full = [i for i, name in enumerate(types) if name == "full_attention"]
        ok = isinstance(full, list | tuple) and all(is_int(i, 0) for i in full)
        require(ok, self.windowed, full, "pass numbers of layers")
        keys.skip("window_size", "tokens_per_second")  # in pixels, and of the positions in the text
        local = layer.with_extras(image_window="aligned")
        return [layer if i in full else local for i in range(count)]


@dataclasses.dataclass(frozen=True)
class Sinusoids(Family):
    """A fixed table over patches, row by row, after a CLS token (MAE)."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        _patches(keys, 224, 16)
        return alike(keys, Sinusoidal2D(), prefix=1, **ENCODER)


@dataclasses.dataclass(frozen=True)
class Patches(Family):
    """A learned vector for each patch (ViT), resized for other images."""

    patch: int = 16  # default of `patch_size`
    tokens: int = 1  # how many tokens before the patches have vectors
    method: str = "bicubic"  # how the table is resized
    antialias: bool = False  # the same
    # default of `num_register_tokens`, which have no vectors; None: there are none
    registers: int | None = None
    # default of `num_patches`, of a square table, instead of an image's size
    squares: int | None = None
    image: int = 224  # default of `image_size`
    optional: bool = False  # whether `use_absolute_position_embeddings: false` leaves the table out

    def _sides(self, keys: Keys) -> tuple[int, int]:
        if self.squares is None:
            return _patches(keys, self.image, self.patch)
        count = keys.integer("num_patches", default=self.squares)
        side = math.isqrt(count)
        require(side**2 == count, "num_patches", count, "pass a square number")
        return side, side

    def read(self, keys: Keys) -> list[LayerEncoding]:
        sides, prefix = self._sides(keys), 0
        if self.registers is not None:
            prefix = keys.integer("num_register_tokens", default=self.registers, low=0)
        encoding: Encoding = LearnedGrid(*sides, self.tokens, self.method, self.antialias)
        if self.optional and not keys.flag("use_absolute_position_embeddings", default=True):
            encoding = Encoding()
        extras = Extras(qk_norm=keys.flag("use_qk_norm"))  # of large towers (InternViT-6B)
        return alike(keys, encoding, prefix=prefix, extras=extras, **ENCODER)


@dataclasses.dataclass(frozen=True)
class BEiT(Family):
    """The image is one Swin window with a class token; also a vector for each patch."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        sides = _patches(keys, 224, 16)
        switches = {
            "use_absolute_position_embeddings": LearnedGrid(*sides, prefix=1),
            "use_shared_relative_position_bias": Swin(*sides, class_token=True, shared=True),
            "use_relative_position_bias": Swin(*sides, class_token=True),
        }
        schemes = [encoding for name, encoding in switches.items() if keys.flag(name)]
        return alike(keys, sum_of(schemes), **ENCODER)


@dataclasses.dataclass(frozen=True)
class SwinFamily(Family):
    """Windows of an image, shifted in every other layer; v2 has a network of the distance."""

    v2: bool = False

    def read(self, keys: Keys) -> list[LayerEncoding]:
        fix = "a table over patches and windows is not supported; the nearest scheme is learned"
        keys.refuse("use_absolute_embeddings", fix)
        window = keys.integer("window_size", default=7)
        depths, heads = (self._stages(keys, name) for name in ("depths", "num_heads"))
        width = keys.integer("embed_dim", default=96)
        sides = _patches(keys, 224, 4)
        trained = keys.get("pretrained_window_sizes") if self.v2 else None
        trained = trained or [0] * len(depths)
        ok = len(heads) == len(depths)
        require(ok, "num_heads", heads, f"depths has {len(depths)} stages")
        ok = isinstance(trained, list | tuple) and len(trained) >= len(depths)
        ok = ok and all(is_int(n, 0) for n in trained)
        require(
            ok, "pretrained_window_sizes", trained, f"pass one for each of {len(depths)} stages"
        )
        entries = []
        for stage, (depth, count) in enumerate(zip(depths, heads, strict=True)):
            size = tuple(n // 2**stage for n in sides)
            channels = width * 2**stage
            fix = f"stage {stage} has {channels} channels, which it must divide"
            require(channels % count == 0, "num_heads", count, fix)
            encoding = Swin(window, window)
            whole = min(size) <= window
            if self.v2:
                fits = [min(n, window) for n in size]
                windows = [trained[stage] or n for n in fits]
                encoding = CPB(*windows)
                whole = all(n <= w for n, w in zip(size, fits, strict=True))
            for index in range(depth):
                place = "shifted" if index % 2 and not whole else "aligned"
                extras = Extras(cosine_scores=self.v2, image_window=place)
                entries.append(LayerEncoding(encoding, channels // count, extras=extras, **ENCODER))
        return entries

    def _stages(self, keys: Keys, name: str) -> Sequence[int]:
        defaults = {"depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24]}
        value = keys.get(name, default=defaults[name])
        ok = isinstance(value, list | tuple) and len(value) > 0 and all(is_int(n, 1) for n in value)
        ok = ok and sum(value) <= 10_000
        require(ok, name, value, "pass an integer of at least 1 for each stage")
        return value
