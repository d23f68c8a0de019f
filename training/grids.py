"""Grids: functions that return run configurations. No file is read, nothing is trained, torch is not loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil

from training.grid import ConfigError, RunConfig, micro_run, paper_run

LOOPED = (2, 4, 8)

# arXiv 2604.21106, appendix and published scripts: sizes by budget in FLOP
PAPER = {4.64e17: (6, 8, 10, 12), 1e18: (6, 8, 10, 12, 14), 2.15e18: (8, 10, 12, 14, 16),
         4.64e18: (10, 12, 14, 16, 18, 20), 1e19: (12, 16, 18, 20, 24), 2.15e19: (18, 24, 28, 34)}
PAPER_TRUNCATED = {4.64e17: (6, 8, 10, 12), 1e18: (6, 8, 10, 12, 14, 16), 2.15e18: (8, 10, 12, 14, 16, 18),
                   4.64e18: (10, 12, 14, 16, 18, 20, 22)}
PAPER_HYPERCONNECTIONS = {4.64e17: (6, 8, 10, 12), 1e18: (6, 8, 10, 12, 14), 2.15e18: (8, 10, 12, 14, 16, 18),
                          4.64e18: (10, 12, 14, 16, 18, 20)}

# widths by budget whose iso-FLOP curves have their minimum inside, measured
MICRO = {1.2e11: (8, 16, 24, 32), 3.2e11: (16, 24, 32, 40), 8.5e11: (16, 24, 32, 48), 2.25e12: (24, 32, 48, 64),
         6.0e12: (32, 48, 64, 80)}
MICRO_PROBES = dict(list(MICRO.items())[:3])


def paper(data: str = "fineweb-edu") -> list[RunConfig]:
    """The published grid: 29 cells of budget and size at r = 1, 2, 4, 8, 116 runs."""
    return [paper_run(size, r, budget, data=data) for budget, size in _cells(PAPER) for r in (1, *LOOPED)]


def truncated(data: str = "fineweb-edu") -> list[RunConfig]:
    """The published truncated probe: gradient through the last half of the recurrences, 69 runs."""
    return [paper_run(size, r, budget, bptt_k=ceil(r / 2), data=data)
            for budget, size in _cells(PAPER_TRUNCATED) for r in LOOPED]


def hyperconnections(data: str = "fineweb-edu") -> list[RunConfig]:
    """The published hyperconnections probe: two lanes, 63 runs."""
    return [paper_run(size, r, budget, scheme="hyperconnect", lanes=2, data=data)
            for budget, size in _cells(PAPER_HYPERCONNECTIONS) for r in LOOPED]


def micro(data: str = "debian") -> list[RunConfig]:
    """A grid for two CPU cores: 5 budgets × 4 widths × r = 1, 2, 4, 8, 80 runs."""
    return [micro_run(width, r, budget, data=data) for budget, width in _cells(MICRO) for r in (1, *LOOPED)]


def micro_truncated(data: str = "debian") -> list[RunConfig]:
    """The truncated probe of `micro` at its three lower budgets, 36 runs."""
    return [micro_run(width, r, budget, bptt_k=ceil(r / 2), data=data)
            for budget, width in _cells(MICRO_PROBES) for r in LOOPED]


def micro_hyperconnections(data: str = "debian") -> list[RunConfig]:
    """Hyperconnections at the three lower budgets of `micro`, with r = 1 runs as the published probe lacks, 48 runs."""
    return [micro_run(width, r, budget, scheme="hyperconnect", lanes=2, data=data)
            for budget, width in _cells(MICRO_PROBES) for r in (1, *LOOPED)]


def micro_ci(data: str = "debian") -> list[RunConfig]:
    """Six runs of about ten CPU-seconds that exercise every recipe."""
    budget = 2e10
    baseline = [micro_run(width, r, budget, data=data) for width in (8, 16) for r in (1, 4)]
    return [*baseline, micro_run(16, 4, budget, bptt_k=2, data=data),
            micro_run(16, 2, budget, scheme="hyperconnect", lanes=2, data=data)]


GRIDS: dict[str, Callable[..., list[RunConfig]]] = {
    "paper": paper, "truncated": truncated, "hyperconnections": hyperconnections, "micro": micro,
    "micro-truncated": micro_truncated, "micro-hyperconnections": micro_hyperconnections, "micro-ci": micro_ci,
}


def _cells(grid: Mapping[float, Sequence[int]]) -> list[tuple[float, int]]:
    return [(budget, size) for budget, sizes in grid.items() for size in sizes]


def distinct(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """Every run once, in the order given.

    Raises
    ------
    ConfigError
        If one computation appears under two names (sizes that round to one width, or two labels).
    """
    found: dict[str, RunConfig] = {}
    for config in configs:
        other = found.setdefault(config.sha256, config)
        if other.run_id != config.run_id:
            raise ConfigError(f"{other.run_id} and {config.run_id} are the same run; leave one of them out "
                              "(odd sizes are rounded up to the next even one where a head has 128 features)")
    return list(found.values())
