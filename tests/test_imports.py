"""The house: imports point down, floor by floor, and importing pe_jax brings in jax alone."""

import ast
import functools
import pathlib
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FLOORS = (  # what a floor may import besides the standard library, and all that is below it
    (
        ("pe_jax.encodings", "pe_jax.numerics", "pe_jax.positions", "pe_jax.position_schemes")
        + (
            "pe_jax.config_fields",
            "pe_jax.spec_strings",
            "pe_jax.validation",
            "pe_jax.naive",
            "pe_jax.masks",
            "pe_jax.graphs",
            "pe_jax.image_positions",
            "pe_jax.hf",
        ),
        ("jax", "numpy"),
    ),
    (("pe_jax.engines", "pe_jax.conformance"), ()),
    (("pe_jax.models", "pe_jax.nnx", "pe_jax.linen"), ("flax",)),
    (
        ("pe_jax.training", "pe_jax.released"),
        ("optax", "orbax", "grain", "tensorflow_datasets", "tokenizers", "tensorboardX", "pyarrow")
        + ("gguf", "safetensors")
        + ("absl", "humanize", "sklearn", "etils", "fsspec", "filelock"),
    ),
    (
        ("experiments.running",),
        ("pe_jax", "ml_collections", "rich", "docstring_parser", "ray"),
    ),  # pe_jax: the public face too
    (("experiments.measuring",), ()),
    (
        ("experiments.reporting",),
        ("scipy", "matplotlib", "jinja2")
        + ("markupsafe", "PIL"),  # what jinja2 and matplotlib bring with them
    ),
    (("experiments",), ()),
    (("tools",), ()),
    (("examples",), ()),
)
OPTIONAL = {  # compared with where it is, needed nowhere
    "pe_jax.engines.kernels.gpu.triton_call": ("triton", "jaxlib"),
    "tools.gpu_code": ("triton",),
    "tools.compile_gpu": (),
    "tools.hf_types": ("torch", "transformers"),
    "tools.hf_keys": ("transformers",),
    "tools.released_speed": ("torch", "transformers"),
    "experiments.measuring.torch_attention": ("torch",),
    "experiments.measuring.torch_model": ("torch",),
    "examples.borrow.gemma3": ("gemma",),
    "examples.borrow.tunix_llama3": ("tunix",),
    "examples.hf": ("torch",),
    "examples.hf_llama": ("transformers",),
    "examples.hf_bloom": ("transformers",),
    "examples.hf_t5": ("transformers",),
    "examples.hf_deberta": ("transformers",),
}
FOLDERS = ("pe_jax", "experiments", "tools", "examples")
FILES = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py"))
PROGRAMS = sorted(path for path in FILES if '__name__ == "__main__"' in path.read_text())


def module(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path) for path in FILES}


def within(name: str, packages) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: pathlib.Path) -> set[str]:
    """What a file imports at any depth, by full name."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}: a relative import; write the full name"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in whole}
    return found


def floor(name: str) -> int | None:
    return next((n for n, (own, _) in enumerate(FLOORS) if within(name, own)), None)


def allowed(name: str, at: int) -> bool:
    """Whether a file on floor `at` may import this module."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    below = FLOORS[: at + 1]
    return any(within(name, own) or within(name, libraries) for own, libraries in below)


def test_imports_point_down():
    for path in FILES:
        at, offered = floor(module(path)), ()
        if at is None:  # the public face, and nothing but it
            assert path == ROOT / "pe_jax" / "__init__.py"
            at, offered = 1, ("pe_jax.models.adapters", "pe_jax.nnx", "pe_jax.linen")
        extra = OPTIONAL.get(module(path), offered)
        wrong = {name for name in imports(path) if not (allowed(name, at) or within(name, extra))}
        assert not wrong, f"{module(path)} is on floor {at} and imports {sorted(wrong)}"


def test_naive_forms_need_numpy_alone_and_the_library_does_without_them():
    for path in ROOT.glob("pe_jax/**/*.py"):
        naive = {name for name in imports(path) if within(name, ("pe_jax.naive",))}
        if within(module(path), ("pe_jax.naive",)):
            others = {name.partition(".")[0] for name in imports(path) - naive}
            assert others <= {"numpy", *sys.stdlib_module_names}, module(path)
        else:
            assert not naive or path == ROOT / "pe_jax" / "__init__.py", module(path)


def test_dispatch_alone_imports_kernels_in_the_library():
    kernels = ("pe_jax.engines.kernels",)
    for path in ROOT.glob("pe_jax/**/*.py"):
        named = {name for name in imports(path) if within(name, kernels)}
        inside = within(module(path), (*kernels, "pe_jax.engines.dispatch"))
        assert inside or not named, module(path)


def test_programs_do_not_import_programs():
    programs = {module(path) for path in PROGRAMS}
    assert {"experiments.train", "experiments.compare", "tools.soak"} <= programs
    bodies = {name for name in MODULES if name.startswith("experiments.programs.")}
    assert "experiments.programs.compare" in bodies
    for path in FILES:
        if ROOT / "examples" in path.parents:
            continue  # the top floor: they show how programs are called
        assert not imports(path) & programs, f"{module(path)} imports a program"
        own = module(path).replace("experiments.", "experiments.programs.", 1)
        others = {name for name in bodies if name not in (own, f"{own}_released")}
        assert not imports(path) & others, f"{module(path)} imports another program"


def test_programs_alone_are_at_the_top_of_experiments():
    top = {path for path in ROOT.glob("experiments/*.py") if path.name != "__init__.py"}
    assert top <= {*PROGRAMS}
    assert not {path for path in PROGRAMS if (ROOT / "experiments") in path.parents} - top


def test_what_needs_an_optional_library_is_imported_late():
    for path in FILES:
        names = set()
        for node in parsed(path).body:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        assert module(path) in OPTIONAL or not names & {*OPTIONAL}, module(path)


def test_an_arrow_that_points_up_is_seen():
    assert floor("pe_jax.encodings.rope") == 0 and floor("experiments.train") == 7
    for name, at in [
        ("pe_jax.engines.api", 0),
        ("flax.nnx", 1),
        ("pe_jax.training.data", 2),
        ("experiments.running.command.launch", 3),
        ("pe_jax", 0),  # the face is above floor 0: it would be a circle
        ("experiments.reporting.plotting", 4),
        ("experiments.measuring.timing", 4),
        ("experiments.train", 6),
        ("tools.hlo", 7),
        ("torch", 9),
        ("tensorflow", 9),
    ]:
        assert not allowed(name, at), name
    assert allowed("pe_jax.encodings.base", 1) and allowed("optax", 4) and allowed("math", 0)


def undocumented(tree: ast.AST) -> list[str]:
    """Public methods without a docstring, of classes that have no base class to override."""
    return [
        f"{kind.name}.{method.name}"
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and not kind.bases
        for method in kind.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
        if ast.get_docstring(method) is None
    ]


def test_methods_have_docstrings_unless_they_override():
    assert not [f"{module(path)}: {name}" for path in FILES for name in undocumented(parsed(path))]


def test_a_method_without_a_docstring_is_seen():
    body = "\n def f(self): pass\n def _g(self): pass\n def h(self): 'x'"
    assert undocumented(ast.parse(f"class A:{body}")) == ["A.f"]
    assert not undocumented(ast.parse(f"class A(B):{body}"))


PICKLES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml", "runpy"}
RUN_CODE = {"eval", "exec", "compile", "__import__"}
RUN_SHELLS = {"import_module", "system", "popen", "unsafe_load", "full_load", "getoutput"}


def risks(tree: ast.AST) -> list[str]:
    """What runs code that is loaded, or a shell."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in RUN_CODE:
                found.append(ast.unparse(node))
            for word in node.keywords:
                never = isinstance(word.value, ast.Constant) and word.value.value is False
                if word.arg in ("allow_pickle", "shell") and not never:
                    found.append(ast.unparse(node))
        if isinstance(node, ast.Attribute) and node.attr in RUN_SHELLS:
            found.append(ast.unparse(node))
    return found


def test_nothing_that_is_loaded_can_run_code():
    for path in [*FILES, *ROOT.glob("configs/*.py")]:
        assert not {name.partition(".")[0] for name in imports(path)} & PICKLES, module(path)
        assert not risks(parsed(path)), module(path)


@pytest.mark.parametrize(
    "code",
    ["eval(x)", "np.load(f, allow_pickle=True)", "run(x, shell=True)", "os.system(x)"]
    + ["yaml.unsafe_load(x)", "importlib.import_module(x)"],
)
def test_what_runs_code_is_seen(code):
    assert risks(ast.parse(code)) and not risks(ast.parse("run(x, shell=False); jax.jit(f)"))


def test_checking_every_scheme_leaves_jax_free_to_join_other_hosts():
    show = """
        import jax, pe_jax
        for name in pe_jax.ENCODINGS:
            pe_jax.make(name).check(pe_jax.Dims(512, 8, 8, 64))
        try:
            jax.distributed.initialize()  # a RuntimeError, had anything been computed
        except ValueError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(show)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "coordinator_address should be defined" in found.stdout, found.stderr[-500:]


def test_importing_pe_jax_loads_jax_alone_and_no_engine_before_it_is_used():
    show = "import sys, pe_jax.encodings; print(*sys.modules); pe_jax.attention, pe_jax.reference"
    show += "; assert pe_jax.naive.SCORES"
    found = subprocess.run(
        [sys.executable, "-c", show], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(found.stdout.split())
    heavy = {name for _, libraries in FLOORS[2:] for name in libraries} - {"pe_jax"}
    heavy -= {"etils", "filelock", "fsspec"}  # jax imports them where they are
    heavy |= {"tensorflow", "torch"}
    assert "pe_jax.encodings.rope" in loaded and not loaded & {
        *heavy,
        "pe_jax.engines",
        "pe_jax.naive",
    }
