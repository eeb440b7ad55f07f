"""Live oracles run only when asked for: `pytest -m oracles` (make oracles)."""

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "oracles: runs torch and transformers; minutes")


@pytest.fixture(scope="session")
def live(request):
    """The module that runs the oracles, or a skip that says what is missing."""
    if "oracles" not in request.config.getoption("markexpr"):
        pytest.skip("the live oracles take minutes: pytest -m oracles")
    for library in ("torch", "transformers"):
        pytest.importorskip(library, reason=f"{library} is missing: install the extra `oracles`")
    from tests.oracles import live

    return live
