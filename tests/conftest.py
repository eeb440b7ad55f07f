import os
import pathlib

import hypothesis
import jax
import pytest

# The tests compile much and run little; eight devices are for the meshes of test_training.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update(
    "jax_compilation_cache_dir", str(pathlib.Path(__file__).parents[1] / ".jax_cache")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink)
hypothesis.settings.register_profile(
    "steady", deadline=None, derandomize=True, max_examples=8, phases=PHASES
)
hypothesis.settings.load_profile("steady")


@pytest.fixture(scope="session")
def text_dir():
    """Real text: the folder in PE_JAX_DATA, else `shared/data` beside the repository."""
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = pathlib.Path(os.environ.get("PE_JAX_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real text: PE_JAX_DATA is not set and {beside.name}/ is not there")
    return folder


@pytest.fixture(scope="session")
def oracles(request):
    """Skips what runs torch and transformers unless it is asked for, or where they are missing."""
    if "oracles" not in request.config.getoption("markexpr"):
        pytest.skip("torch and transformers take minutes: pytest -m oracles")
    for library in ("torch", "transformers"):
        pytest.importorskip(library, reason=f"{library} is missing: install the extra `oracles`")


def pytest_runtest_teardown(item, nextitem):
    """Compiled programs are kept for one group of tests: a process may map only so many of them."""
    group = lambda i: i and ([m.args for m in i.iter_markers("xdist_group")], i.path)  # noqa: E731
    if group(item) != group(nextitem):
        jax.clear_caches()
