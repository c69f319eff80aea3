"""The rules of the source tree that no other tool checks: layers, sizes, public names, stubs, and nothing of one machine in the files."""

import ast
import importlib
import importlib.util
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LAYERS = (
    ("__main__", "launch_router"),
    ("cli",),
    ("commands",),
    ("server", "sim"),
    ("middleware",),
    ("api",),
    ("pipeline",),
    ("template",),
    ("tokenizer",),
    ("parser",),
    ("policy",),
    ("kvindex",),
    ("worker",),
    ("engine",),
    ("obs",),
    ("_ext",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
COMMON = frozenset({"errors", "registry", "types", "config"})
SIM_MAY_IMPORT = COMMON | {"sim", "tokenizer", "template", "pb"}
PB_ROOMS = frozenset({"engine", "sim", "pb"})
LINES_TO_WARN, LINES_TO_FAIL = 400, 600
FUNCTION_TO_WARN, FUNCTION_TO_FAIL = 40, 60
TOP_FOLDERS = frozenset({"smg", "smg_ext", "proto", "packaging", "systemd", "tests", "bench"})
TOP_FILES = frozenset({"setup.py", "pyproject.toml", "README.md", "Makefile", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"})
# spelled in two parts, so that this file does not hold what it forbids
HOSTS = re.compile(
    "|".join(("hugging" r"face\.co/", "pypi" r"\.org", "files\\.pythonhosted", "npm" r"js\.(org|com)", "crates" r"\.io/", "ghcr" r"\.io"))
)
HOMES = re.compile(r"/(home|Users)/[a-z][\w.-]*/|/ro" "ot/|/wo" "rk/")


def tracked() -> list[pathlib.Path]:
    """Files of the repository, also those not yet committed; every file when this is no git checkout."""
    listing = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listing.stdout.splitlines() if listing.returncode == 0 else [str(path.relative_to(ROOT)) for path in ROOT.glob("smg*/**/*")]
    return [path for name in names if (path := ROOT / name).is_file()]


FILES = tracked()
MODULES = [
    path
    for path in FILES
    if path.suffix == ".py" and path.is_relative_to(ROOT / "smg") and not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
]
PYX = [path for path in FILES if path.suffix == ".pyx"]


def name_of(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """`smg.api.openai.chat` -> `api`; the package itself -> ``."""
    return module.split(".")[1] if "." in module else ""


def imports(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of each import, also those inside functions; `from a import b` gives a.b as well as a."""
    module = name_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(filter(None, [*package.split(".")[: len(package.split(".")) - node.level + 1], base]))
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def layer_fault(importer: str, imported: str) -> str | None:
    """Why a module of room `importer` may not import from room `imported`; None when it may."""
    if imported in COMMON or imported in ("", "__version__") or importer == imported:
        return None
    if imported == "pb":
        return None if importer in PB_ROOMS else "only smg.engine and smg.sim import smg.pb"
    if importer in COMMON:
        return f"smg.{importer} is imported by all, so it imports only {sorted(COMMON)}"
    if importer == "sim":
        return None if imported in SIM_MAY_IMPORT else f"smg.sim imports only {sorted(SIM_MAY_IMPORT)}"
    if importer not in LEVEL or imported not in LEVEL:
        return "not in the list of layers"
    return None if LEVEL[imported] > LEVEL[importer] else "imports go only down the list of layers"


def room_names() -> set[str]:
    return {path.stem if path.parent == ROOT / "smg" else path.relative_to(ROOT / "smg").parts[0] for path in MODULES}


def test_imports_go_down() -> None:
    rooms, faults = room_names(), []
    for path in MODULES:
        importer = room_of(name_of(path))
        for line, name in imports(path):
            parts = name.split(".")
            imported = parts[1] if parts[0] == "smg" and len(parts) > 1 and parts[1] in rooms else ""
            fault = layer_fault(importer, imported) if importer else None
            if fault:
                faults.append(f"{path.relative_to(ROOT)}:{line}: {name}: {fault}")
    assert not faults, "\n".join(sorted(set(faults)))


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("api", "pipeline", True),
        ("pipeline", "api", False),
        ("engine", "errors", True),
        ("types", "engine", False),
        ("api", "pb", False),
        ("engine", "pb", True),
        ("sim", "engine", False),
        ("sim", "tokenizer", True),
        ("server", "sim", False),
        ("cli", "server", True),
        ("nowhere", "engine", False),
    ],
)
def test_layer_rule(importer: str, imported: str, allowed: bool) -> None:
    assert (layer_fault(importer, imported) is None) is allowed


def test_only_ext_imports_native_modules() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in MODULES
        for line, name in imports(path)
        if name.split(".")[0] == "smg_ext" and name_of(path) != "smg._ext"
    ]
    assert not faults, f"only smg/_ext.py imports smg_ext: {faults}"


def test_file_sizes() -> None:
    sizes = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES if path.suffix in (".py", ".pyx", ".pxd", ".pyi", ".sh")
    }
    for path, lines in sorted(sizes.items()):
        if LINES_TO_WARN < lines <= LINES_TO_FAIL:
            print(f"{path.relative_to(ROOT)}: {lines} lines, more than {LINES_TO_WARN}")
    faults = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in sizes.items() if lines > LINES_TO_FAIL]
    assert not faults, faults


def functions(path: pathlib.Path) -> Iterator[tuple[str, int]]:
    """Place and length in lines of each function, decorators and docstring included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_function_lengths() -> None:
    lengths = [pair for path in FILES if path.suffix == ".py" for pair in functions(path)]
    for place, lines in lengths:
        if FUNCTION_TO_WARN < lines <= FUNCTION_TO_FAIL:
            print(f"{place}: {lines} lines, more than {FUNCTION_TO_WARN}")
    faults = [f"{place}: {lines} lines" for place, lines in lengths if lines > FUNCTION_TO_FAIL]
    assert not faults, faults


def declared(tree: ast.Module) -> list[str] | None:
    """The module's `__all__`, if it is a plain list of strings."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets) and node.value is not None:
            return list(ast.literal_eval(node.value))
    return None


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_public_names(path: pathlib.Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body, "a module opens with a docstring"
    if room_of(name_of(path)) in LAYERS[0] or path.name == "__main__.py" or not any(not isinstance(node, ast.Expr) for node in tree.body):
        return
    names = declared(tree)
    assert names is not None, "no __all__"
    assert len(set(names)) == len(names), "a name is in __all__ twice"
    module = importlib.import_module(name_of(path))
    absent = [name for name in names if not hasattr(module, name)]
    assert not absent, f"in __all__, and not there: {absent}"


def test_other_modules_use_public_names_only() -> None:
    public = {name_of(path): declared(ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES}
    faults = []
    for path in MODULES:
        for line, name in imports(path):
            module, _, member = name.rpartition(".")
            names = public.get(module)
            if module != "smg.pb" and names is not None and name not in public and member not in names:
                faults.append(f"{path.relative_to(ROOT)}:{line}: {member} is not in {module}.__all__")
    assert not faults, "\n".join(faults)


def test_nothing_of_one_machine() -> None:
    faults = []
    for path in FILES:
        if path.suffix in (".json", ".jsonl", ".lock", ".so", ".gz", ".zip", ".bin") or path.name == "LICENSE":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if HOSTS.search(line) or HOMES.search(line):
                faults.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not faults, "\n".join(faults)


def test_top_level() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in FILES}
    surplus = sorted(name for name in names - TOP_FOLDERS - TOP_FILES if not name.startswith("."))
    assert not surplus, f"not a name of the top level: {surplus}"


def test_setup_builds_every_native_module() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    [listed] = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MODULES"]
    assert isinstance(listed, ast.Dict)
    assert sorted(ast.literal_eval(key) for key in listed.keys if key) == sorted(path.stem for path in PYX)


@pytest.mark.parametrize("path", PYX, ids=lambda path: path.stem)
def test_stub(path: pathlib.Path) -> None:
    """The hand-written stub names what the built module has, with the same signatures."""
    stub = path.with_suffix(".pyi")
    assert stub.exists(), f"{path.name} has no {stub.name} beside it"
    module = f"smg_ext.{path.stem}"
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not built")
    public = {name for name in vars(importlib.import_module(module)) if not name.startswith("_")}
    names = {node.name for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert names <= public, f"in the stub, and not in the module: {sorted(names - public)}"


@pytest.mark.skipif(not PYX, reason="no Cython module")
def test_stubs_agree_with_modules(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mypy.stubtest", reason="mypy is not installed: pip install 'smg[dev]'")
    modules = [
        f"smg_ext.{path.stem}" for path in PYX if path.with_suffix(".pyi").exists() and importlib.util.find_spec(f"smg_ext.{path.stem}")
    ]
    assert modules, "no native module is built"
    tolerated = tmp_path / "tolerated"
    tolerated.write_text(r"smg_ext\..*\.__init__" + "\n")  # a class's __cinit__ tells no signature
    flags = ["--concise", "--ignore-disjoint-bases", "--ignore-unused-allowlist", "--allowlist", str(tolerated)]
    done = subprocess.run([sys.executable, "-m", "mypy.stubtest", *flags, *modules], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
