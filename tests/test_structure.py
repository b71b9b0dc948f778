"""The house: what is public, that rooms import downwards only, that files and functions are short.

How big it is, is printed (`python -m tests.test_structure`, or this test with `-s`), and fails nothing.
"""

import ast
import functools
import importlib
import pathlib
import re
import subprocess
import sys

import pytest

import streamsampler
from streamsampler.core import errors

PACKAGE = pathlib.Path(streamsampler.__file__).parent

# The rooms of the house, from the ground up: a module may import those of its own room and of rooms listed before it.
ROOMS = [
    *("core", "environments", "protocol", "data", "agents", "rollouts", "workers", "engines", "samplers", "stepping"),
    *("evaluation", "checking", "formats", "testing", "", "examples", "cli", "__main__"),
]
# Paths that users import from, and the rooms whose names they are. They only import.
FACES = {"adapters": "agents", "errors": "core", "filters": "agents"}
# Inside a function: `batch.save(…)` is worth it.
UPWARDS_INSIDE_FUNCTIONS = {("data.batch", "data.npz")}

MOST_LINES, MOST_LINES_OF_FUNCTION = 600, 60
# Functions would cost percents here.
MEASURED_LOOPS = [
    "rollouts.script.trajectory",
    "stepping.server.step",
    "workers.several.parallel_loop.timesteps",
    "workers.single.run",
]


# Where environments are stepped for what a sampler or a manager returns. Rules, hooks and recorders that a trajectory
# needs would have to be in each of them, so whatever can drive a script does: another one needs a measurement that says
# why it cannot.
STEPPED = {
    "rollouts.script.trajectory": "the script: all trajectories but those below",
    "workers.several.parallel_loop.ParallelLoop.timesteps": "games of free steps, in half of the script's time",
    "stepping.server.EnvServer.step": "the server of environments: steps that a manager or an agent elsewhere asks for",
    "workers.vec.native.NativeRunner._step_until_all_end": "native vector environments: all rows by one call",
}
# What gives a script the environment's step. The last one only asks whether the step is the environment's own.
DRIVERS = {
    "workers.single.SingleDriver.__init__",
    "workers.vec.driver.RowsDriver._binding",
    "workers.restoring.apply_actions",
    "stepping.server.EnvServer._replay",
    "workers.default.DefaultWorker._roll",
    "workers.waiting.driver.FlightDriver.__init__",
}
# What stands in an environment's place, and passes a step on to it.
STEP_WRAPPERS = {
    "environments.filming._FilmedEnv.step",
    "environments.multi_agent.AecEnv.step",
    "environments.multi_agent.ParallelEnv.__init__",
    "environments.parameters._ParametrisedEnv.__init__",
    "stepping.server.EnvServer._converted_step",
    "stepping.joint_env.JointEnv.step",
    "testing.faults.FaultyEnv.step",
    "workers.fail_points._MortalEnv.step",
    "workers.seams.OverridableSteps.step",
    "workers.masks.masked_loop.step_and_keep",
    "workers.purity._StandIn.step",
    "workers.waiting.awaited_env.AwaitedEnv.step",
    "checking.ordinary_env.OrdinaryEnv.step",
}
MEASURES_STEPS = {"checking.manager_ways._step_vector", "checking.probes.stepped"}
# Where a check needs steps that no script takes: one that is cancelled in the middle, and what comes after it.
CANCELS_STEPS = {"checking.waiting._begun", "checking.waiting._results"}
# Of these receivers `step` asks a server of environments for steps, by their numbers.
SERVERS = {"transport", "_transport", "_environments", "_server"}

# What keeps what trajectories bring, each with its subclasses.
RECORDERS = {
    "RolloutRecorder": {"AgentRecorder", "JointRecorder"},  # trajectories, one after the other
    "ColumnsRecorder": {"NativeRecorder", "StepRecorder", "BatchRecorder"},  # many rows, a column for each call
    "MultiAgentRows": set(),  # a `JointRecorder` for each environment, in the place of a `StepRecorder`
    # The steps that a manager returned: in a `StepRecorder`, and of several agents in `MultiAgentRows`.
    "StepsRecorder": {"RowsRecorder", "JointStepsRecorder"},
}
# Of these: the script's side of a `BatchRecorder`; and what all are made of: the values of one space, and infos.
PARTS_OF_RECORDERS = {"RowRecorder", "Recorder", "InfoRecorder"}


# Capabilities, the patterns of their words in code, and how many files may have them: a capability is one place with
# seams for others, and not a flag through twenty files. Links to pages do not count, nor do torch's own hooks.
SPREAD = {
    "hooks": (r"\bhooks?\b|HookCaller|Hooked", 18),
    "dropping": (r"drop_if|on_failure.{0,12}drop|\bDropped\b|drop_unless", 18),
    "the run-twice check": (r"purity|rehears|Checked\b|check_order", 10),
    "lags": (r"staleness|\blag\b|OffByOne|off_by_one|run_ahead", 12),
}
NOT_SPREAD = {"agents.mlp", "data.info_columns"}  # of torch, and a word in a message

# The functions and files that run from `obtain_samples(10)` to the first `env.step`, and from there to the batch: each
# of them is on the way of whoever reads how a call works. These numbers may only fall. `python -m tests.walk -v` names
# them.
WALK = {"down": (171, 54), "up": (165, 44)}

MOST_FLOORS = 2
"""Of base classes under the samplers that users make."""


def room(module):
    first = module.partition(".")[0]
    return FACES.get(first, first)


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
def statements(path):
    """Return all statements of a file: walking into expressions too took five times as long."""
    return list(_statements(parsed(path)))


def _statements(node):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from _statements(child)


@functools.cache
def imports(module, path, for_types=False):
    return list(_imports(module, path, for_types))


def _imports(module, path, for_types):
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    type_checking = {
        id(inner)
        for node in statements(path)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in node.body
    }
    for node in statements(path):
        if not isinstance(node, ast.ImportFrom) or (id(node) in type_checking and not for_types):
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


def test_faces_only_import():
    for module, path in modules():
        if module.partition(".")[0] in FACES:
            kinds = {
                type(node)
                for node in parsed(path).body
                if not (isinstance(node, ast.Assign) and "__all__" in ast.unparse(node))
            }
            assert kinds <= {ast.Expr, ast.ImportFrom}, module


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


def n_lines_of_code(path):
    """Count lines of code: neither blank ones, nor comments, nor docstrings."""
    texts = set()
    for node in statements(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = path.read_text().splitlines()
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in texts
        for number, line in enumerate(lines, start=1)
    )


def circles(graph):
    """Return the sets of modules that import one another, by Tarjan's algorithm."""
    numbers, lowest, stack, found = {}, {}, [], []

    def visit(module):
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for imported in graph[module]:
            if imported not in numbers:
                visit(imported)
            if imported in stack:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == numbers[module]:
            position = stack.index(module)
            circle, stack[position:] = stack[position:], []
            found.extend([sorted(circle)] if len(circle) > 1 else [])

    for module in graph:
        if module not in numbers:
            visit(module)
    return sorted(found)


def test_there_are_no_circles():
    graph = {module: set(imports(module, path, for_types=True)) - {module} for module, path in modules()}
    assert circles(graph) == [], "these import one another, if only for types: move what both need into a file below"


def sizes():
    """Return how big the house is: a room is a folder of the package, or a module at its top."""
    code = {module: n_lines_of_code(path) for module, path in modules()}
    arrows = {
        (room(module), room(other))
        for module, path in modules()
        for other in imports(module, path, for_types=True)
        if room(module) != room(other)
    }
    of_rooms = {each: sum(code[module] for module in code if room(module) == each) for each in ROOMS}
    lines = [f"{n:7,}  {each or 'streamsampler'}" for each, n in of_rooms.items()]
    total = f"{sum(code.values()):7,}  lines of code in {len(code)} files, {len(ROOMS)} rooms, {len(arrows)} arrows"
    return "\n".join([*lines, total])


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set()}) == [["a", "b", "c"]]


def steps_environments(node):
    """Tell whether a piece of code steps an environment, or looks up an environment's `step`."""
    if isinstance(node, ast.Attribute) and node.attr == "step":
        return re.search(r"(^|[._])envs?(\[.*\])?$", ast.unparse(node.value)) is not None
    if not (isinstance(node, ast.Call) and node.args):
        return False
    match node.func:
        case ast.Name(id="step" | "step_env"):
            return True
        case ast.Attribute(attr="step", value=receiver):
            return ast.unparse(receiver).rpartition(".")[2] not in SERVERS
    return False


def places_of(wanted, node, name):
    """Yield the names of the functions in which a piece of code is as wanted."""
    for child in ast.iter_child_nodes(node):
        inside = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{name}.{child.name}"
        if wanted(child):
            yield inside
        yield from places_of(wanted, child, inside)


def test_environments_are_stepped_in_four_places():
    found = {
        place
        for module, path in modules()
        if room(module) not in ("agents", "examples") and re.search(r"\bstep(_env)?\b", path.read_text())
        for place in places_of(steps_environments, parsed(path), module)
    }
    assert found == {*STEPPED, *DRIVERS, *STEP_WRAPPERS, *MEASURES_STEPS, *CANCELS_STEPS}, "drive a script instead"
    assert len(STEPPED) <= 4


def test_stepping_is_found():
    code = """
class A:
    def f(self): return self._game.step(1)
    def g(self): return [env.step for env in self.envs]
    def h(self): step(2)
    def no(self): self.transport.step([1]), range(3).step, self.recorder.step, other.step()
"""
    assert {*places_of(steps_environments, ast.parse(code), "it")} == {"it.A.f", "it.A.g", "it.A.h"}


def test_there_are_four_recorders():
    """A recorder has its name, or a docstring that begins with what it records."""
    found = {
        node.name: {ast.unparse(base).partition("[")[0] for base in node.bases}
        for _, path in modules()
        for node in statements(path)
        if isinstance(node, ast.ClassDef)
        and (node.name.endswith("Recorder") or (ast.get_docstring(node) or "").startswith("Records "))
    }

    def ancestor(name):
        return next((ancestor(base) for base in found[name] if base in found), name)

    families = {}
    for name in found.keys() - PARTS_OF_RECORDERS:
        families.setdefault(ancestor(name), set()).update({name} - {ancestor(name)})
    assert families == RECORDERS, "is it a subclass, or can one of these do it?"
    assert len(RECORDERS) <= 4


def class_names():
    """Return the modules in which classes of a name are defined, leading underscores apart."""
    found = {}
    for module, path in modules():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(module)
    return found


def test_a_class_name_stands_once():
    twice = {name: places for name, places in class_names().items() if len(places) > 1}
    assert twice == {}, "name the class by what it holds or does in its own room"


@pytest.mark.parametrize(
    "sampler", ["processes.MultiprocessingSampler", "processes.LocalSampler", "ray.RaySampler"], ids=str
)
def test_a_sampler_has_few_floors(sampler):
    module, _, name = sampler.partition(".")
    found = getattr(importlib.import_module(f"streamsampler.samplers.{module}"), name)
    bases = [base.__name__ for base in found.__mro__ if base.__module__.startswith("streamsampler.")]
    assert len(bases) <= 2 + MOST_FLOORS, f"{bases}: a sampler has its life, and is none"


def code_of(path):
    """Return a file's code without docstrings, comments, and links to pages."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [it for it in node.body if not is_text(it)] or [ast.Pass()]
    return re.sub(r"docs/[\w-]+\.md", "", ast.unparse(tree))


def is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@pytest.mark.parametrize("capability", SPREAD)
def test_a_capability_has_its_place(capability):
    pattern, most = SPREAD[capability]
    files = [
        module
        for module, path in modules()
        if room(module) != "examples" and module not in NOT_SPREAD and re.search(pattern, path.read_text())
        if re.search(pattern, code_of(path))
    ]
    assert len(files) <= most, f"{files} know of {capability}: let some of them call a place that does"


def test_the_way_of_a_call_is_no_longer_than_before():
    """In a process of its own: here, other tests have imported what changes the way."""
    found = subprocess.run([sys.executable, "-m", "tests.walk"], capture_output=True, text=True, check=True).stdout
    for line in found.splitlines():
        way, n_functions, _, _, n_files, _ = line.split()
        most = WALK[way]
        assert (int(n_functions), int(n_files)) <= most, f"{line}; {most} before: see `python -m tests.walk -v`"
        assert int(n_files) <= most[1], line


def test_no_private_name_is_imported():
    wrong = [
        f"{module} imports {alias.name}"
        for module, path in modules()
        for node in statements(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamsampler")
        for alias in node.names
        if alias.name.startswith("_") and alias.name not in ("__version__", "__all__")
    ]
    assert wrong == []


def test_files_and_functions_are_short():
    """Of a function, its docstring is not counted."""
    print(f"\n{sizes()}")
    too_long = []
    for module, path in modules():
        too_long += [module] if path.read_text().count("\n") > MOST_LINES else []
        for node in statements(path):
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
        "AsyncWorker",
        "DefaultWorker",
        "EnvManager",
        "EnvUpdate",
        "ExistingEnvUpdate",
        "Limits",
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


if __name__ == "__main__":
    print(sizes())
