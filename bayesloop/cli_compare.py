"""`bayesloop compare` with more than one model: the table or the posteriors it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesloop.cli_options import emit, load_all, read_table
from bayesloop.console import progress
from bayesloop.schema import InputError

if TYPE_CHECKING:
    from bayesloop.assumptions import Assumptions
    from bayesloop.heldout import HeldOut


Reading = tuple[str | None, Any, Any, str, Any, float | None, str | None]  # the arguments of `read_table` but the path


def check_together(paths: Sequence[Path], reading: Reading, assumptions: bool, held_out: bool,
                   models: Sequence[str] | None, out: Path | None) -> None:
    """Refuse options that the others leave without effect."""
    if assumptions and held_out:
        raise InputError("--assumptions and --held-out are two questions: ask one at a time")
    if not held_out and (models or out):
        raise InputError(f"{'--models' if models else '--out'} belongs to --held-out")
    declared = any(each for each in reading if each != "rec")
    if declared and all(path.suffix == ".nc" for path in paths):
        raise InputError("--where and what declares a table are for a table of runs with --assumptions or --held-out; "
                         "posteriors are of the runs that were fitted")


def under_assumptions(paths: Sequence[Path], reference: str, prob: float, reading: Reading, seed: int) -> Assumptions:
    """Posteriors of one table, or the table, which is then fitted under each assumption."""
    from bayesloop.assumptions import compare_assumptions

    if _posteriors(paths, "--assumptions"):
        return compare_assumptions(load_all(list(paths)), reference=reference, prob=prob)
    with progress("sampling") as advance:
        return compare_assumptions(read_table(paths[0], *reading), reference=reference, prob=prob,
                                   seed=seed, progress=lambda recipe, done, total: advance(done, total))


def under_models(paths: Sequence[Path], models: Sequence[str] | None, reference: str, reading: Reading, seed: int,
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
        found = held_out(load_all(list(paths)) if files else read_table(paths[0], *reading), models, reference, seed,
                         progress=lambda model, done, total: advance(done, total))
    emit(found.table, "held_out", out, as_json=False)
    return found


def _posteriors(paths: Sequence[Path], option: str) -> bool:
    """Whether posterior files are given, not a table."""
    files = all(path.suffix == ".nc" for path in paths)
    if not files and len(paths) > 1:
        raise InputError(f"{option} takes posteriors of one table, or one table of runs")
    return files
