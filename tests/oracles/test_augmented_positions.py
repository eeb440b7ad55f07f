"""Positions that are drawn as DINOv3 draws them, by their distribution: `make oracles`."""

import jax
import numpy as np
import pytest

from pe_jax import positions
from tests.encodings.test_positions import recovered

pytestmark = pytest.mark.oracles
FIELDS, DRAWS = {"shift": 0.3, "jitter": 1.5, "rescale": 2.0}, 4000
GRID = positions.grid(3, 4, normalized=True)


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_draws_are_distributed_as_theirs(live, library):
    import torch

    torch.manual_seed(0)
    places = torch.tensor(np.asarray(GRID))
    if library == "transformers":
        from transformers.models.dinov3_vit import modeling_dinov3_vit

        draw, fields = modeling_dinov3_vit.augment_patches_center_coordinates, FIELDS
    else:
        draw = live.vision.timm_layers("pos_embed_sincos")._apply_coord_augs
        fields = {f"{name}_coords": value for name, value in FIELDS.items()}
    theirs = np.stack([draw(places, **fields).double().numpy() for _ in range(DRAWS)])
    keys = jax.random.split(jax.random.key(0), DRAWS)
    ours = jax.vmap(lambda key: positions.augmented(key, GRID, **FIELDS))(keys)
    grid = np.asarray(GRID)
    pair = recovered(grid, np.asarray(ours, np.float64)), recovered(grid, theirs)
    levels = np.linspace(0.02, 0.98, 25)
    for name in pair[0]:
        a, b = (np.quantile(found[name], levels, axis=0) for found in pair)
        np.testing.assert_allclose(a, b, atol=0.05)  # four standard errors of a median
