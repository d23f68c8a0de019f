"""`bayesloop compare` with more than one model: the table or the posteriors it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayesloop.cli_options import emit, load_all, read_table
from bayesloop.console import progress
from bayesloop.schema import InputError

if TYPE_CHECKING:
    from bayesloop.assumptions import Assumptions
    from bayesloop.heldout import HeldOut


def under_assumptions(paths: Sequence[Path], reference: str, prob: float, where: str | None, seed: int) -> Assumptions:
    """Posteriors of one table, or the table, which is then fitted under each assumption."""
    from bayesloop.assumptions import compare_assumptions

    if _posteriors(paths, "--assumptions"):
        return compare_assumptions(load_all(list(paths)), reference=reference, prob=prob)
    with progress("sampling") as advance:
        return compare_assumptions(read_table(paths[0], where), reference=reference, prob=prob,
                                   seed=seed, progress=lambda recipe, done, total: advance(done, total))


def under_models(paths: Sequence[Path], models: Sequence[str] | None, reference: str, where: str | None, seed: int,
                 out: Path | None) -> HeldOut:
    """Posteriors of one table, or the table, which is then fitted by each model, compared by held-out prediction."""
    from bayesloop.heldout import held_out
    from bayesloop.posterior import check_writable

    if out:
        check_writable(out)
    files = _posteriors(paths, "--held-out")
    if files and models:
        raise InputError("--models says what is fitted to a table of runs; posteriors are of their own models")
    with progress("sampling") as advance:
        found = held_out(load_all(list(paths)) if files else read_table(paths[0], where), models, reference, seed,
                         progress=lambda model, done, total: advance(done, total))
    emit(found.table, "held_out", out, as_json=False)
    return found


def _posteriors(paths: Sequence[Path], option: str) -> bool:
    """Whether posterior files are given, not a table."""
    files = all(path.suffix == ".nc" for path in paths)
    if not files and len(paths) > 1:
        raise InputError(f"{option} takes posteriors of one table, or one table of runs")
    return files
