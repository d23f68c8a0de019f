"""Runs that could be trained: grids over budgets, widths, recurrence counts and probes, with their exact cost."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd
import xarray as xr

from bayesloop.architecture import width_from_size
from bayesloop.curves import probes_of
from bayesloop.family import Family, family_of
from bayesloop.problems import near
from bayesloop.schema import InputError
from bayesloop.selection import ANCHOR

PEAK = 989e12  # FLOP/s of an H100 SXM in dense bf16, NVIDIA's data sheet
MFU = 0.4      # share of it that training reaches; state your own
_KEYS: dict[str, Any] = {"probe": ANCHOR, "r": None, "budgets": None, "widths": None, "sizes": None, "repeats": 1,
                         "model": {}}


class DesignError(InputError):
    """A design that cannot be built; the message says what was expected."""


def design_runs(post: xr.DataTree, budgets: Sequence[float], r: Sequence[int], widths: Sequence[int] | None = None,
                sizes: Sequence[float] | None = None, probe: str = ANCHOR, repeats: int = 1,
                model: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """A full grid of runs.

    Parameters
    ----------
    post : DataTree
        Whose conventions of counting hold, and whose recipe, where it knows the probe.
    budgets : sequence of float
        FLOP.
    r, widths : sequence of int
    sizes : sequence of float, optional
        In place of widths: 64 features each, rounded up to whole heads.
    probe : str
        A recipe of the posterior, or a new one.
    repeats : int
        Runs of every kind, which differ by their seed.
    model : mapping, optional
        Fields of `Family` that differ.

    Returns
    -------
    DataFrame
        probe, r, budget, width, n_once, n_rec, tokens, flops.

    Raises
    ------
    DesignError, ArchitectureError
        If the grid is empty, or a run of it cannot be built or paid for.
    """
    if (widths is None) == (sizes is None):
        raise DesignError("a design needs either widths or sizes (64 features each); "
                          f"{'neither is' if widths is None else 'both are'} given")
    known = probe if probe in probes_of(post) else ANCHOR if ANCHOR in probes_of(post) else probes_of(post)[0]
    rows = []
    for count in r:
        family = family_of(post, known, int(count), **dict(model or {}))
        wanted = widths if sizes is None else [width_from_size(size, family.head_dim) for size in sizes or ()]
        rows += [{"probe": probe, **_without_steps(family, int(width), int(count), float(budget))}
                 for budget, width, _ in product(budgets, dict.fromkeys(wanted or ()), range(repeats))]
    if not rows:
        raise DesignError("the design has no runs; expected at least one budget, one width and one r")
    return pd.DataFrame(rows)


def _without_steps(family: Family, width: int, r: int, budget: float) -> dict[str, float]:
    run = family.run(width, r, budget)
    del run["n_steps"]
    return run


def read_design(post: xr.DataTree, path: str | os.PathLike[str]) -> pd.DataFrame:
    """A design from a TOML file with tables ``[[runs]]``, each a grid with the arguments of `design_runs`.

    Raises
    ------
    DesignError
        If the file is missing, not TOML, or has other keys than those.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            grids = tomllib.load(file).get("runs")
    except OSError as error:
        raise DesignError(f"{name}: cannot be read ({error.strerror})") from None
    except tomllib.TOMLDecodeError as error:
        raise DesignError(f"{name}: not TOML ({error})") from None
    if not isinstance(grids, list) or not grids:
        raise DesignError(f"{name}: expected one or more tables [[runs]] with budgets, widths or sizes, and r")
    parts = []
    for number, grid in enumerate(grids, 1):
        for key in grid:
            if key not in _KEYS:
                raise DesignError(f"{name}: [[runs]] number {number} has the key {key!r}{near(key, _KEYS)}; expected "
                                  f"some of {', '.join(_KEYS)}")
        filled = {key: grid.get(key, default) for key, default in _KEYS.items()}
        for key in ("budgets", "r", "widths", "sizes"):
            value = filled[key]
            filled[key] = value if value is None or isinstance(value, list) else [value]
        if filled["budgets"] is None or filled["r"] is None:
            raise DesignError(f"{name}: [[runs]] number {number} needs budgets and r")
        parts.append(design_runs(post, **filled))
    return pd.concat(parts, ignore_index=True)


def gpu_hours(flops: float, mfu: float = MFU, peak: float = PEAK) -> float:
    """Accelerator hours of training compute at a share `mfu` of a peak in FLOP/s."""
    return flops / (mfu * peak * 3600)
