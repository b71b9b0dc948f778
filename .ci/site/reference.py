"""Write the page of public names: `python .ci/site/reference.py FILE`."""

import inspect
import pathlib
import sys

import streamsampler

ROOMS = {
    "Samplers": ("streamsampler.samplers", "streamsampler.protocol"),
    "Batches and files": ("streamsampler.data",),
    "Agents and environments": ("streamsampler.agents", "streamsampler.environments"),
    "Stepping environments yourself": ("streamsampler.stepping",),
    "Evaluation and checks": ("streamsampler.evaluation", "streamsampler.checking"),
    "Workers": ("streamsampler.workers",),
    "Times": ("streamsampler.core.timing",),
}
FIRST = "MultiprocessingSampler", "LocalSampler", "RaySampler", "Sampler", "TrajectoryBatch", "EnvManager", "evaluate"
MODULES = ("adapters.torch", "adapters.sb3", "adapters.mlp", "filters", "environments", "formats", "testing", "errors")


def page() -> str:
    """Return the page, in reStructuredText."""
    names = [
        name for name in streamsampler.__all__ if name not in ("__version__", "errors", *streamsampler.errors.__all__)
    ]
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    lines = ["Reference", "=========", "", "The names that users import from ``streamsampler``.", ""]
    for heading, rooms in ROOMS.items():
        lines += [heading, "-" * len(heading), ""]
        for name in [it for it in names if getattr(streamsampler, it).__module__.startswith(rooms)]:
            names.remove(name)
            lines += entry(f"streamsampler.{name}", getattr(streamsampler, name))
    assert not names, f"no heading has {names}"
    for module in MODULES:
        title = f"streamsampler.{module}"
        lines += [title, "-" * len(title), ""]
        found = __import__(title, fromlist=["__all__"])
        for name in found.__all__:
            if not hasattr(streamsampler, name) or module == "errors":
                lines += entry(f"{title}.{name}", getattr(found, name))
    return "\n".join(lines)


def entry(name: str, value: object) -> list[str]:
    """Return the lines of a name."""
    if isinstance(value, type):
        return [
            f".. autoclass:: {name}",
            "   :members:",
            "   :inherited-members: object, tuple, dict, int, Exception, BaseException",
            "",
        ]
    return [f".. autofunction:: {name}" if inspect.isroutine(value) else f".. autodata:: {name}", ""]


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(page())
