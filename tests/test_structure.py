"""The house: what is public, and that layers import downwards only."""

import ast
import pathlib
import subprocess
import sys

import pytest

import streamsampler
from streamsampler import errors

PACKAGE = pathlib.Path(streamsampler.__file__).parent

# From the ground up. A module may import those of lower layers, and its neighbours listed before it.
LAYERS = [
    [
        "version",
        "data.words",
        "errors",
        "compact",
        "checks",
        "data.exactness",
        "samplers.per_worker",
        "workers.threads",
        "storage.atomic",
        "scheduling.quotas",
    ],
    [
        "data.trees",
        "data.generics",
        "data.memory",
        "data.info_columns",
        "seeding",
        "serialization",
        "protocol",
        "samplers.updates",
        "data.statistics",
    ],
    [
        "workers.episodes",
        "samplers.verdicts",
        "scheduling.plans",
        "scheduling.throughput",
        "scheduling.blocks",
        "scheduling.early_stop",
        "scheduling.in_flight",
        "scheduling.result",
        "scheduling.gathering",
        "scheduling.hang_watch",
        "scheduling.restarts",
    ],
    [
        "workers.board",
        "samplers.failures",
        "workers.logs",
        "scheduling.dispatch",
        "data.spaces",
        "storage.json_facts",
        "storage.npz_reader",
        "data.conversion",
        "data.buffers",
        "data.infos",
        "storage.json_codec",
        "data.opaque",
        "storage.space_codec",
        "cli.current_directory",
        "agents.random",
        "agents.base",
        "agents.updates",
        "environments.ids",
        "environments.kinds",
        "environments.worker_numbers",
        "environments.updates",
    ],
    ["data.batch_fields", "data.batch"],
    [
        "adapters",
        "adapters.heads",
        "adapters.parameters",
        "adapters.normalization",
        "adapters.mlp",
        "adapters.torch",
        "adapters.archives",
        "adapters.sb3",
    ],
    [
        "data.anomalies",
        "data.step_values",
        "data.recorder",
        "data.assembly",
        "storage.npz",
        "storage.manifest",
        "storage.lock",
        "storage.shard_files",
        "storage.folder",
        "storage.shards",
    ],
    [
        "workers",
        "workers.base",
        "workers.known_wrappers",
        "workers.purity",
        "workers.default",
        "workers.vec.infos",
        "workers.vec.rows",
        "workers.vec.recorder",
        "workers.vec.agents",
        "workers.vec.slots",
        "workers.vec.native_values",
        "workers.vec.native",
        "workers.vec.worker",
        "workers.factory",
    ],
    ["workers.loop"],
    [
        "engines",
        "engines.base",
        "engines.processes.shared_memory",
        "engines.processes.messages",
        "engines.processes.stacks",
        "engines.processes.wire",
        "engines.launch.child",
        "engines.launch.descriptor_limits",
        "engines.launch.descriptors",
        "engines.launch.children",
        "engines.launch.start_methods",
        "engines.launch.worker_child",
        "engines.launch.leftovers",
        "engines.launch.watchdog",
        "engines.launch.fork_server",
        "engines.launch.import_path",
        "engines.launch.start",
        "testing.fail_points",
        "engines.processes.worker_main",
        "engines.processes.links",
        "engines.local",
        "engines.processes.engine",
    ],
    [
        "samplers.setbacks",
        "samplers.supervisor",
        "samplers.session",
        "samplers.anomaly_accounts",
        "samplers.checking",
        "samplers.call_accounts",
        "samplers.decisions",
        "samplers.call",
        "samplers.streaming",
    ],
    ["samplers.progress", "samplers.progress_output"],
    [
        "samplers.payloads",
        "samplers.lifecycle",
        "samplers.options",
        "samplers.base",
        "samplers.local",
        "samplers.processes",
        "samplers.sharded",
    ],
    [
        "testing.records",
        "testing.misdeeds",
        "testing.scripted",
        "testing.wrappers",
        "testing.faults",
        "testing.workers",
        "testing",
    ],
    [""],
    ["examples", "examples.reinforce"],
    ["cli"],
    ["__main__"],
]
# Inside a function: `batch.save(…)` is worth it.
UPWARDS_INSIDE_FUNCTIONS = {("data.batch", "storage.npz")}


def rank(module):
    parts = module.split(".")
    for name in (module, parts[0]):
        for height, layer in enumerate(LAYERS):
            if name in layer:
                return height, layer.index(name)
    raise AssertionError(f"{module} has no place in the house")


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def is_module(parts):
    path = PACKAGE.joinpath(*".".join(parts).split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imports(module, path):
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    type_checking = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
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


def test_layers_import_downwards_only():
    wrong = [
        f"{module or 'streamsampler'} imports {imported}"
        for module, path in modules()
        for imported in imports(module, path)
        if rank(imported) > rank(module) and (module, imported) not in UPWARDS_INSIDE_FUNCTIONS
    ]
    assert wrong == []


def test_the_public_face():
    assert set(streamsampler.__all__) == {
        *(name for name in errors.__all__ if isinstance(getattr(errors, name), type)),
        "errors",
        "Agent",
        "DefaultWorker",
        "EnvUpdate",
        "ExistingEnvUpdate",
        "LocalSampler",
        "MultiprocessingSampler",
        "NewEnvUpdate",
        "PerWorker",
        "RandomAgent",
        "Sampler",
        "SetTaskUpdate",
        "StepType",
        "TrajectoryBatch",
        "TrajectoryFolder",
        "VecWorker",
        "Worker",
        "WorkerFactory",
        "__version__",
        "load",
        "run_worker",
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
            body = ast.parse(path.read_text()).body
            names = {
                target.id
                for node in body
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            has_code = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in body)
            assert "__all__" in names or not has_code, module
