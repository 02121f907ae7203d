"""tinyengine: a small LLM serving engine in stages, and the course that builds it.

Importing it costs nothing: torch is imported with the first name that needs it.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "Engine": "engine",
    "OverlappedEngine": "overlap",
    "SLO_CLASSES": "params",
    "SamplingParams": "params",
    "Slo": "params",
    "STAGES": "stages",
    "Trace": "trace",
    "load_model": "model.load",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'tinyengine' has no attribute {name!r}")
    return getattr(import_module(f"tinyengine.{_HOMES[name]}"), name)


def __dir__():
    return sorted([*globals(), *__all__])
