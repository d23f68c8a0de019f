"""Bayesian inference of scaling laws for looped (depth-recurrent) language models.

Names are loaded when they are first used: importing `bayesloop` loads neither jax nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "read_runs": "runs", "select": "runs", "validate": "runs", "write_runs": "runs",
    "fit": "inference",
    "save": "posterior", "load": "posterior", "summarise": "posterior",
    "point_fit": "pointfit",
    "compare": "comparison", "compare_assumptions": "assumptions", "matched_differences": "matched",
    "held_out": "heldout",
    "check": "checks", "robust_intervals": "robust", "sensitivity": "influence",
    "predict": "decisions", "equivalent": "equivalents", "optimum": "frontier", "exponents": "growth",
    "plan": "planning", "cheapest": "planning", "rank": "planning", "design_runs": "designs",
    "report": "reporting",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"bayesloop.{_HOME[name]}"), name)
    raise AttributeError(f"module 'bayesloop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
