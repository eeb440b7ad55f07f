import ctypes
import functools
import gc
import os
import pathlib

import hypothesis
import jax
import numpy as np
import pytest

from experiments.running.process import signals

signals.GRACE = 600.0  # a program that a signal ends is a worker of pytest
# The tests compile much and run little: these settings take a sixth of the time off a law of every
# scheme, a third of that by rarer garbage collection. Eight devices are for meshes.
gc.set_threshold(50_000, 20, 20)
CACHE = pathlib.Path(__file__).parents[1] / ".jax_cache"
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # workers and programs start in half the time
    os.environ["PYTHONPYCACHEPREFIX"] = str(CACHE / "bytecode")
FAST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
FAST += " --xla_cpu_parallel_codegen_split_count=1"
FAST += " --xla_disable_hlo_passes=while-loop-invariant-code-motion,simplify-while-loops"
if jax.__version_info__ < (0, 11):  # XLA's older emitters take half of the time; 0.12 has none
    FAST += " --xla_cpu_use_fusion_emitters=false"
if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":  # tests/test_gpu.py names others
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST}"
    jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_include_full_tracebacks_in_locations", False)
jax.config.update("jax_traceback_in_locations_limit", 0)
jax.config.update("jax_compilation_cache_dir", str(CACHE))
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


QUICK = ("alibi", "rope", "t5")  # a bias that is arithmetic, a rotation, a learned table


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """Marks the laws of three schemes as quick; skips studies of minutes unless asked for.

    The tests of a file run on one worker: they share programs and set-ups. The laws of a scheme are
    a group each; they come last, so that no worker is idle for long.
    """
    grouped = {item for item in items if item.get_closest_marker("xdist_group")}
    items.sort(key=lambda item: item in grouped and "case" in item.fixturenames)
    for item in items:
        if item not in grouped:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))
    for item in items:
        if item.path.parent.name == "contract" and hasattr(item, "callspec"):
            if item.callspec.params.get("case") in quick_cases():
                item.add_marker(pytest.mark.quick)
    if "slow" not in config.getoption("markexpr"):
        skip = pytest.mark.skip(reason="a study of minutes: pytest -m slow")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(skip)


@functools.cache
def quick_cases():
    """The first case of each scheme in `QUICK`."""
    from tests import util  # imports pe_jax: later than the flags of JAX above

    named = [(case.name.partition("(")[0], case) for case in util.SINGLE]
    return {scheme: case for scheme, case in reversed(named) if scheme in QUICK}.values()


def pytest_runtest_teardown(item, nextitem):
    """Drops compiled programs between groups of tests: a worker would grow to several GB."""
    group = lambda i: i and ([m.args for m in i.iter_markers("xdist_group")], i.path)  # noqa: E731
    if group(item) != group(nextitem) and _resident() > 3 * 2**30:
        jax.clear_caches()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # else glibc keeps all of it
            trim(0)


def _resident() -> float:
    """Bytes of memory that this process holds; where the system does not say, more than any."""
    said = pathlib.Path("/proc/self/statm")
    return (
        int(said.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if said.exists() else np.inf
    )
