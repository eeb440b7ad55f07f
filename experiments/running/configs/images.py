"""The config of `experiments.images`, checked before anything compiles."""

import dataclasses
import functools
import re
from typing import Self

from experiments.running.configs.sweep import TrialsConfig, encodings_field
from pe_jax.config_fields import ascending, choice_field, int_field, ranged
from pe_jax.encodings.registry import Spec
from pe_jax.training import digits, images
from pe_jax.validation import ConfigError, refuse

IMAGES = {"discs": images, "digits": digits}
CONVENTIONS = ("index", "normalized", "augmented", "resized")


@dataclasses.dataclass(frozen=True)
class ImagesConfig(TrialsConfig):
    """A comparison on images: every encoding with every seed, at the training size and larger.

    Attributes:
      images: "discs", drawn from keys (`pe_jax.training.images`), or "digits", handwritten ones at
        random places (`pe_jax.training.digits`).
      encodings: as `model.encoding` takes them; `{side}` stands for the patches along a side of a
        training image. A suffix `@normalized`, `@augmented` or `@resized` selects other positions
        than the patches' indices (`positions.grid`; the same, rescaled in training as DINOv3's are,
        `positions.augmented`; `positions.resized`); an encoding of one axis gets the patches row by
        row.
      reference: the encoding that the others are compared with, by the fraction of images right on
        each kind of view, mean over its sides. As in `encodings`, or its short name; empty: the
        first.
      sides: of the images in pixels, ascending: trained at the first, tested at all.
      patch: side of a patch in pixels.
    """

    workdir: str = ranged("runs/images", "a path", bool)
    images: str = choice_field("discs", tuple(IMAGES))
    encodings: tuple[str, ...] = encodings_field(
        "nope",
        "sinusoidal_2d",
        "learned_2d(height={side},width={side},stddev=0.5)",
        "learned_2d(height={side},width={side},stddev=0.5)@resized",
        "rope_2d(base=100.0)",
        "rope_2d(base=100.0,normalized=True)@normalized",
        "rope_mixed",
        "rope_2d(base=100.0,normalized=True)@augmented",
        "swin(height={side},width={side})",
        "cpb(height={side},width={side},hidden=64)",
        "alibi_2d",
    )
    reference: str = ""
    sides: tuple[int, ...] = ranged(
        (32, 48, 64),
        "ascending positive integers",
        lambda v: len(v) > 0 and ascending(v, 1),
    )
    patch: int = int_field(4, 1)
    test: int = int_field(1024, 1)

    def check(self) -> Self:
        """Checks every model as well."""
        filled = super().check().resolved()
        if self.model.causal:
            raise ConfigError("model.causal=True: pass False, every patch sees all others")
        least = IMAGES[self.images].MIN_SIDE
        if self.sides[0] < least:
            refuse("sides", self.sides, f"images={self.images!r} need at least {least} pixels")
        if any(side % self.patch for side in self.sides):
            raise ConfigError(f"sides={self.sides}: must be multiples of patch={self.patch}")
        for spec, convention in filled.entries:
            if convention not in CONVENTIONS:
                raise ConfigError(f"encodings: {spec}@{convention}: choose one of {CONVENTIONS}")
            model = dataclasses.replace(self.model, encoding=spec)
            model.check()
            for encoding in model.pattern:
                several = encoding.claims.axes == 2 and (
                    convention == "index" or encoding.claims.real_positions
                )
                if not several and not (encoding.claims.axes == 1 and convention == "index"):
                    raise ConfigError(
                        f"encodings: {spec}@{convention}: an image has two axes; normalized and"
                        " resized positions are real numbers, which not every encoding takes"
                    )
        if len({*filled.entries}) < len(self.encodings):
            raise ConfigError(f"encodings={self.encodings}: name each once")
        return filled

    def spec(self, text: str) -> Spec:
        """An encoding and its convention, with the patches along a training image's side."""
        return Spec(text).filled(side=self.sides[0] // self.patch)

    @functools.cached_property
    def entries(self) -> list[tuple[Spec, str]]:
        """(encoding, convention of its positions)."""
        # a suffix without `=`: `@window=49` is the setting of a layer
        split = [re.fullmatch(r"(.*?)(?:@(\w+))?", x, re.DOTALL) for x in self.encodings]
        return [(Spec(match[1]), match[2] or "index") for match in split if match]
