import os
import pathlib

import pytest


@pytest.fixture(scope="session")
def text_dir():
    """Real text: the folder in PE_JAX_DATA, else `shared/data` beside the repository."""
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = pathlib.Path(os.environ.get("PE_JAX_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real text: PE_JAX_DATA is not set and {beside.name}/ is not there")
    return folder
