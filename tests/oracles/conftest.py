"""Live oracles run only when asked for: `pytest -m oracles` (make oracles)."""

import pytest


@pytest.fixture(scope="session")
def live(oracles):
    """The module that runs the oracles, or a skip that says what is missing."""
    from tests.oracles import live

    return live
