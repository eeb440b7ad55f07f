"""What an oracle was given and what it answered, in memory and as golden files."""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


class Record(NamedTuple):
    """One run of an oracle: settings are JSON, inputs and outputs NumPy arrays by name."""

    case: str
    settings: dict[str, Any]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    versions: dict[str, str]


def save(record: Record, path: pathlib.Path) -> None:
    """Writes a golden file; the same record gives the same bytes."""
    about = {"case": record.case, "settings": record.settings, "versions": record.versions}
    arrays = {f"in.{name}": x for name, x in record.inputs.items()}
    arrays |= {f"out.{name}": x for name, x in record.outputs.items()}
    np.savez_compressed(path, about=np.array(json.dumps(about, sort_keys=True)), **arrays)


def load(path: pathlib.Path) -> Record:
    """Reads a golden file (plain arrays: nothing in it can run)."""
    with np.load(path, allow_pickle=False) as file:
        about = json.loads(str(file["about"]))
        arrays = {name: file[name] for name in file.files if name != "about"}
    inputs, outputs = (
        {name.removeprefix(kind): x for name, x in arrays.items() if name.startswith(kind)}
        for kind in ("in.", "out.")
    )
    return Record(about["case"], about["settings"], inputs, outputs, about["versions"])
