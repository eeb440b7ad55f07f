"""The oracles themselves: other people's code on random weights and inputs.

Each function builds the oracle, fills its weights with random numbers, runs it, and returns
(inputs, outputs) for `replay.compare`. Needs the extra `oracles`; a case of a library besides torch
and transformers is skipped where that is missing. Output projections are set to the identity, so
that what comes out is the attention itself.
B batch, T queries, S keys, H heads, E head width, D = H·E.
"""

import importlib.metadata

import numpy as np
import torch
import transformers

from tests.oracles.cases import PACKAGES
from tests.oracles.live import absolute, from_input, relative, rotary, scalings, vision
from tests.oracles.replay import Record


def run(case: str, settings: dict, length: int = 12, seed: int = 0) -> Record:
    """Runs one oracle."""
    rng = np.random.default_rng(seed)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    with torch.no_grad():
        inputs, outputs = ORACLES[case](rng, length, **settings)
    for ending, package in PACKAGES.items():
        if case.endswith(ending):
            versions[package] = importlib.metadata.version(package)
    pure = ({name: x.detach().numpy() for name, x in group.items()} for group in (inputs, outputs))
    return Record(case, settings, *pure, versions)


MODULES = (absolute, from_input, relative, rotary, scalings, vision)
ORACLES = {name: x for module in MODULES for name, x in vars(module).items()}
SCALINGS = "linear dynamic yarn llama3 longrope proportional"
ORACLES |= {f"rope_{kind}": scalings.rope_scaled for kind in SCALINGS.split()}
