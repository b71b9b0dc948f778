"""The house: what is public, that rooms import downwards only, and that files and functions are short."""

import ast
import functools
import pathlib
import subprocess
import sys

import pytest

import streamsampler
from streamsampler import errors

PACKAGE = pathlib.Path(streamsampler.__file__).parent

# The rooms of the house, from the ground up: a module may import those of its own room and of rooms listed before it.
ROOMS = [
    *("version", "errors", "extras", "timing", "seeding", "serialization", "agents", "environments", "protocol"),
    *("scheduling", "data"),
    *(
        "filters",
        "storage",
        "workers",
        "adapters",
        "engines",
        "samplers",
        "stepping",
        "evaluation",
        "benchmarking",
        "checking",
        "formats",
        "testing",
        "",
        "coming_from",
        "examples",
        "cli",
        "__main__",
    ),
]
# Inside a function: `batch.save(…)` is worth it; fail points are loaded only where they are switched on.
UPWARDS_INSIDE_FUNCTIONS = {("data.batch", "storage.npz"), ("engines.processes.worker_main", "testing.fail_points")}

MOST_LINES, MOST_LINES_OF_FUNCTION = 600, 60
MEASURED_LOOPS = ["workers.default._run", "workers.several.loop.timesteps"]  # functions would cost percents here


def room(module):
    return module.partition(".")[0]


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def is_module(parts):
    path = PACKAGE.joinpath(*".".join(parts).split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


@functools.cache
def nodes(path):
    return list(ast.walk(parsed(path)))


@functools.cache
def imports(module, path):
    return list(_imports(module, path))


def _imports(module, path):
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    type_checking = {
        id(inner)
        for node in nodes(path)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in nodes(path):
        if not isinstance(node, ast.ImportFrom) or id(node) in type_checking:
            continue
        if node.level:
            base = package.split(".") if package else []
            base = base[: len(base) - node.level + 1]
            for name in [node.module] if node.module else [alias.name for alias in node.names]:
                yield ".".join([*base, name])
        elif node.module and node.module.split(".")[0] == "streamsampler":
            base = node.module.partition(".")[2]
            for name in [alias.name for alias in node.names]:
                parts = [part for part in (base, name) if part]
                yield ".".join(parts) if is_module(parts) else base


def test_rooms_import_downwards_only():
    wrong = [
        f"{module or 'streamsampler'} imports {imported}"
        for module, path in modules()
        for imported in imports(module, path)
        if ROOMS.index(room(imported)) > ROOMS.index(room(module))
        and (module, imported) not in UPWARDS_INSIDE_FUNCTIONS
    ]
    assert wrong == []


def test_no_modules_import_one_another():
    graph = {module: set(imports(module, path)) for module, path in modules()}
    for upwards, target in UPWARDS_INSIDE_FUNCTIONS:
        graph[upwards].discard(target)
    seen, path = set(), []

    def visit(module):
        assert module not in path, " imports ".join([*path[path.index(module) :], module])
        if module in seen:
            return
        seen.add(module)
        path.append(module)
        for imported in sorted(graph.get(module, ())):
            visit(imported)
        path.pop()

    for module in graph:
        visit(module)


def test_no_private_name_is_imported():
    wrong = [
        f"{module} imports {alias.name}"
        for module, path in modules()
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamsampler")
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__"
    ]
    assert wrong == []


def test_files_and_functions_are_short():
    """Of a function, its docstring is not counted."""
    too_long = []
    for module, path in modules():
        too_long += [module] if path.read_text().count("\n") > MOST_LINES else []
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef):
                code = node.body[ast.get_docstring(node) is not None :]
                n_lines = sum((statement.end_lineno or 0) - statement.lineno + 1 for statement in code)
                too_long += [f"{module}.{node.name}"] if n_lines > MOST_LINES_OF_FUNCTION else []
    assert too_long == MEASURED_LOOPS


def test_the_public_face():
    values = {name: getattr(errors, name) for name in errors.__all__}
    assert set(streamsampler.__all__) == {
        *(name for name, value in values.items() if isinstance(value, type) and issubclass(value, Exception)),
        "errors",
        "Agent",
        "DefaultWorker",
        "EnvManager",
        "EnvUpdate",
        "ExistingEnvUpdate",
        "LocalSampler",
        "MultiAgentBatch",
        "MultiprocessingSampler",
        "NewEnvUpdate",
        "PerWorker",
        "RandomAgent",
        "RaySampler",
        "Sampler",
        "SetParameters",
        "SetTaskUpdate",
        "SerialEnvManager",
        "StepType",
        "Steps",
        "TrajectoryBatch",
        "TrajectoryFolder",
        "VecWorker",
        "Worker",
        "WorkerFactory",
        "__version__",
        "check",
        "compare",
        "evaluate",
        "load",
        "merge",
        "replay",
        "run_worker",
        "sample_to_folder",
        "timed",
    }
    assert set(streamsampler.__all__) <= set(dir(streamsampler))
    for name in set(streamsampler.__all__) - {"__version__"}:
        assert getattr(streamsampler, name).__name__ == ("streamsampler.errors" if name == "errors" else name)
    with pytest.raises(AttributeError, match="has no attribute 'Agnet'"):
        streamsampler.Agnet  # noqa: B018


def test_errors_are_there_at_once():
    code = "import streamsampler; print(streamsampler.errors.UsageError.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "UsageError\n"


@pytest.mark.parametrize(
    ("imported", "not_needed"),
    [
        (
            "streamsampler.engines.processes.worker_main, streamsampler.workers.default",
            {"click", "streamsampler.samplers.base"},
        ),
        ("streamsampler.cli", {"numpy", "gymnasium"}),
    ],
    ids=["worker", "help"],
)
def test_quick_to_start(imported, not_needed):
    code = f"import sys, {imported}; print(*{not_needed!r} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"


def test_every_module_says_what_it_exports():
    for module, path in modules():
        if module not in ("", "__main__", "version"):
            body = parsed(path).body
            names = {
                target.id
                for node in body
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            has_code = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in body)
            assert "__all__" in names or not has_code, module
