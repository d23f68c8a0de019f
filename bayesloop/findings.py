"""Everything a report shows: what the package's functions say about one posterior, or why one does not apply."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import xarray as xr

from bayesloop.architecture import ArchitectureError
from bayesloop.assumptions import Assumptions, single_difference, under_assumptions
from bayesloop.checks import Check, check
from bayesloop.comparison import borrows_anchor, compare
from bayesloop.curves import probe_runs, probes_of, residuals, runs_of
from bayesloop.equivalents import depends_on_tokens, equivalent
from bayesloop.family import OTHER_MODELS
from bayesloop.frontier import describe, solve
from bayesloop.growth import growth
from bayesloop.matched import matched_differences
from bayesloop.posterior import PosteriorError, attribute, summarise
from bayesloop.problems import RunsWarning
from bayesloop.selection import ANCHOR

ONE_PROBE = "the runs are of one probe, so there is no difference between recipes"


@dataclass(frozen=True)
class Findings:
    """What is known of a posterior.

    Attributes
    ----------
    post : DataTree
    reference : str
        The probe that differences are taken from.
    prob : float
        Probability of the intervals.
    check : Check
    tables : dict of str to DataFrame
        In full precision, by name; only those that apply.
    absent : dict of str to str
        Why the other tables do not apply.
    contradicted : dict of str to list of str
        By probe, what speaks against a single Δφ.
    undecided : dict of str to str
        By probe, how the sign of Δφ depends on the assumption about what else the recipe does.
    unanchored : list of str
        Probes whose φ leans on the reference's r = 1 runs, without being the same computation there.
    notes : list of str
        What to keep in mind, from all of it.
    assumptions : Assumptions or None
    """

    post: xr.DataTree
    reference: str
    prob: float
    check: Check
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    contradicted: dict[str, list[str]] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)
    unanchored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    assumptions: Assumptions | None = None

    @property
    def probes(self) -> list[str]:
        """Probes that have a φ of their own, the reference first."""
        found = phi_probes(self.post)
        return sorted(found, key=lambda probe: probe != self.reference)

    def put(self, name: str, make: Callable[[], pd.DataFrame]) -> None:
        """Make a table, or note why it does not apply."""
        try:
            table = make()
        except (PosteriorError, ArchitectureError) as error:
            self.absent[name] = str(error)
        else:
            self.tables[name] = table


def phi_probes(post: xr.DataTree) -> list[str]:
    """Probes that have a φ of their own; none where φ is one for all, or fixed."""
    draws = post["posterior"].to_dataset()
    return [str(probe) for probe in draws["phi"]["probe"].values] if "phi" in draws and "probe" in draws["phi"].dims \
        else []


def default_reference(post: xr.DataTree) -> str:
    """The probe that differences are taken from where none is named: the baseline, or the first there is."""
    probes = phi_probes(post) or probes_of(post)
    return ANCHOR if ANCHOR in probes else probes[0]


def table_of(post: xr.DataTree) -> pd.DataFrame:
    """The table that a posterior was fitted to, so that it can be fitted otherwise."""
    runs = runs_of(post).assign(run_id=post["observed_data"]["run"].to_numpy())
    if runs["budget"].isna().all():
        runs = runs.drop(columns="budget")
    runs.attrs = {name: post.attrs.get(f"data_{name}", "unknown")
                  for name in ("source", "injection", "count_convention")}
    return runs


def gather(post: xr.DataTree, reference: str | None = None, prob: float = 0.95,
           assumptions: Assumptions | None = None, family: Mapping[str, Any] | None = None,
           force: bool = False) -> Findings:
    """Ask the package all that a report tells.

    Parameters
    ----------
    post : DataTree
        From `fit` or `load`.
    reference : str, optional
        The probe that differences are taken from; default: the baseline, or the first probe.
    prob : float
        Probability of the intervals.
    assumptions : Assumptions, optional
        From `compare_assumptions`, of the same runs.
    family : mapping, optional
        As in `optimum`.
    force : bool
        Accept a posterior that did not converge.

    Raises
    ------
    PosteriorError
        If the posterior did not converge, or the reference is not among its probes.
    """
    known = phi_probes(post) or probes_of(post)
    if reference is not None and reference not in known:
        raise PosteriorError(f"reference {reference!r} is not among the probes; name one of {', '.join(known)} "
                             "(reference=, --reference)")
    if assumptions and {each.attrs["data_sha256"] for each in assumptions.posts} != {post.attrs["data_sha256"]}:
        raise PosteriorError("the assumptions were compared on other runs than the posterior's; fit them to one table")
    chosen = reference or default_reference(post)
    found = Findings(post, chosen, prob, check(post, chosen), assumptions=assumptions)
    found.tables.update(runs=residuals(post).assign(run=post["observed_data"]["run"].to_numpy()),
                        parameters=summarise(post, prob))
    found.put("excluded", lambda: _excluded(post))
    found.put("comparison", lambda: compare(post, chosen, prob=prob, force=force))
    found.put("robust", lambda: _robust(found.check))
    found.put("matched", lambda: _matched(found))
    if assumptions:
        found.tables["assumptions"] = assumptions.table
    _doubt_differences(found)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RunsWarning)
        _decide(found, dict(family or {}), force)
    told = [str(each.message) for each in caught if issubclass(each.category, RunsWarning)]
    found.notes.extend(dict.fromkeys([*_notes(found), *told]))
    return found


def _excluded(post: xr.DataTree) -> pd.DataFrame:
    rows = attribute(post, "data_excluded", [])
    if not rows:
        raise PosteriorError("no row of the table was excluded")
    return pd.DataFrame(rows)


def _robust(seen: Check) -> pd.DataFrame:
    if seen.robust.empty:
        raise PosteriorError(seen.robust.attrs["reason"])
    return seen.robust


def _matched(found: Findings) -> pd.DataFrame:
    if len(probes_of(found.post)) < 2:
        raise PosteriorError(ONE_PROBE)
    return matched_differences(found.post, found.reference)


def _doubt_differences(found: Findings) -> None:
    """What each probe's difference may not be taken for."""
    matched = found.tables.get("matched", pd.DataFrame())
    for probe in found.probes[1:]:
        fine, told = single_difference(found.post, probe, matched, found.reference)
        if not fine:
            found.contradicted[probe] = told
        if found.assumptions and probe in set(found.assumptions.table["probe"]):
            holds, sentence = under_assumptions(found.assumptions.table, probe)
            if not holds:
                found.undecided[probe] = sentence
    found.unanchored.extend(probe for probe in found.probes if borrows_anchor(found.post, probe))


@contextmanager
def _only_models_that_were_run() -> Iterator[None]:
    """What a command warns of, a report leaves out: sizes of models that are not those of the table."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=OTHER_MODELS, category=RunsWarning)
        yield


def _decide(found: Findings, family: dict[str, Any], force: bool) -> None:
    """Compute-optimal models and equivalent sizes of every probe that has looped runs, stacked."""
    made: dict[str, list[pd.DataFrame]] = {"optimum": [], "exponents": [], "equivalent": []}
    reasons: dict[str, str] = {}
    for probe in found.probes or [found.reference]:
        try:
            if probe_runs(found.post, probe)["budget"].isna().all():
                raise PosteriorError("the runs have no budgets, so there is no compute to divide; give a column "
                                     "`budget`")
            with _only_models_that_were_run():
                frontier = solve(found.post, probe=probe, family=family, force=force)
            made["optimum"].append(describe(frontier, found.prob).assign(probe=probe))
            made["exponents"].append(growth(frontier, found.prob).assign(probe=probe))
        except (PosteriorError, ArchitectureError, RunsWarning) as error:
            reasons |= dict.fromkeys(("optimum", "exponents"), str(error))
        try:
            with _only_models_that_were_run():
                made["equivalent"].append(_equivalent(found, probe, family, force))
        except (PosteriorError, ArchitectureError, RunsWarning) as error:
            reasons["equivalent"] = str(error)
    for name, parts in made.items():
        if parts:
            table = pd.concat(parts, ignore_index=True)
            found.tables[name] = table[["probe", *(column for column in table if column != "probe")]]
        else:
            found.absent[name] = reasons[name]


def _equivalent(found: Findings, probe: str, family: dict[str, Any], force: bool) -> pd.DataFrame:
    """Of the widest looped model that was run, where it matters on the most tokens: nothing is extrapolated."""
    runs = probe_runs(found.post, probe)
    looped = runs[runs["r"] > 1]
    if looped.empty:
        raise PosteriorError(f"no looped run of probe {probe!r}, so there is nothing to set against a plain model")
    if "width" not in looped or not (looped["width"] > 0).any():
        raise PosteriorError("the runs have no width, so the models of one width that are to be compared are unknown; "
                             "give a column `width`")
    widest = looped[looped["width"] == looped["width"].max()]
    tokens = float(widest["tokens"].max()) if depends_on_tokens(found.post, probe) else None
    return equivalent(found.post, sorted(set(looped["r"])), width=float(widest["width"].max()), probe=probe,
                      tokens=tokens, family=family, prob=found.prob, force=force)


def _notes(found: Findings) -> list[str]:
    """What the comparison notes (the posterior's doubts among it), else the doubts alone."""
    table: Any = found.tables.get("comparison")
    told = table.attrs["notes"] if table is not None else attribute(found.post, "doubts")
    return [str(each) for each in told]
