"""Parameter counts, their conventions, and the recipe of a run: what follows from an architecture if not given."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bayesloop.architecture import COUNT_CONVENTIONS, SCHEMES, Architecture, ArchitectureError
from bayesloop.draft import NO_INT, SHAPE, Draft, can_derive
from bayesloop.problems import RunsError, near

INJECTIONS = ("rec", "once", "none")


def derive_counts(draft: Draft, convention: str) -> None:
    """Fill n_once, n_rec and n_inject of the rows that lack one, from the layers or from `n_params` at r = 1.

    A row's own counts are kept. Rows for which nothing says how many parameters there are, are refused.
    """
    n = len(draft.places)
    names = set(map(str, draft.table.columns))
    if not {"n_once", "n_rec"} <= names and not can_derive(names):
        return  # the missing columns are reported already
    counts = {name: draft.values(name).copy() for name in ("n_once", "n_rec", "n_inject")}
    lacking = draft.standing & (np.isnan(counts["n_once"]) | np.isnan(counts["n_rec"]))
    faults: dict[str, np.ndarray] = {}
    for i in np.flatnonzero(lacking):
        try:
            once, rec, inject = _counts_of(draft, int(i), convention)
            counts["n_once"][i], counts["n_rec"][i], counts["n_inject"][i] = once, rec, inject
        except ArchitectureError as error:
            faults.setdefault(str(error), np.zeros(n, dtype=bool))[i] = True
    for reason, mask in faults.items():
        draft.refuse("counts", mask, f"without n_once and n_rec, which cannot be derived: {reason}",
                     "give n_once and n_rec, or width, n_prelude, n_recur, n_coda and scheme, or n_params where r = 1",
                     ("r", "n_once", "n_rec"))
    if lacking.any():
        draft.ledger.notes.append(f"n_once and n_rec derived from the architecture in {int(lacking.sum())} rows")
    for name, values in counts.items():
        if not np.isnan(values).all():
            draft.table[name] = values


def check_counts(draft: Draft, convention: str) -> None:
    """Doubt given counts that differ from those of the given layers by more than 1 %: embeddings, or another model."""
    if not set(SHAPE) <= set(map(str, draft.table.columns)):
        return
    given = draft.values("n_once") + draft.values("n_rec")
    doubtful = np.zeros(len(draft.places), dtype=bool)
    for i in np.flatnonzero(draft.standing & ~np.isnan(given)).tolist():
        try:
            once, rec, _ = _counts_of(draft, i, convention)
        except ArchitectureError:
            continue
        doubtful[i] = abs(given[i] - once - rec) > 0.01 * (once + rec)
    draft.warn("counts", doubtful, "where n_once + n_rec is not that of the layers given: embeddings counted, or "
               "another model?", ("r", "n_once", "n_rec"))


def _counts_of(draft: Draft, i: int, convention: str) -> tuple[float, float, float]:
    """n_once, n_rec and n_inject of one row."""
    row = draft.table.iloc[i]
    r = int(row.get("r", NO_INT))
    if r == 1 and row.get("n_params", np.nan) > 0:
        return 0.0, float(row["n_params"]), 0.0
    if any(row.get(name, NO_INT) == NO_INT for name in SHAPE):
        raise ArchitectureError("no layers are given")
    scheme = row.get("scheme", "") or ("hyperconnect" if row.get("lanes", 0) > 0 else "")
    if not scheme and r > 1:
        raise ArchitectureError("no scheme says whether there is an injection")
    if scheme and scheme not in SCHEMES:
        raise ArchitectureError(f"scheme {scheme!r} is not known{near(scheme, SCHEMES)}")
    width = int(row["width"])
    lanes = max(int(row.get("lanes", 0)), 0) if scheme == "hyperconnect" else 0
    # one head: the number of heads changes no count
    model = Architecture(width, int(row["n_prelude"]), int(row["n_recur"]), int(row["n_coda"]), r,
                         scheme=scheme or "passthrough", lanes=lanes, head_dim=width)
    return float(model.n_once(convention)), float(model.n_rec(convention)), float(model.n_inject)


def settle_convention(draft: Draft, declared: str | None) -> str:
    """The count convention of the table: the declared one, its column's, or what the counts themselves show.

    Counts show it where they are whole multiples of 12 d² (formula) or of 12 d² + 2 d (exact) in every row.
    Returns "undeclared" where none of these says.
    """
    if declared is not None and declared not in COUNT_CONVENTIONS:
        raise RunsError(f"count_convention is {declared!r}; expected one of {', '.join(COUNT_CONVENTIONS)}")
    given = draft.values("count_convention", "")[draft.standing]
    kinds, sizes = np.unique(given.astype(str), return_counts=True)
    if len(kinds) > 1:
        odd = draft.standing & (draft.values("count_convention", "") != kinds[sizes.argmax()])
        draft.refuse("count_convention", odd, f"with another count convention than the other rows' "
                     f"{kinds[sizes.argmax()]!r}", "a table has one convention; recount these rows or read them as "
                     "a table of their own", ("count_convention",))
        return "mixed"
    found = str(kinds[0]) if len(kinds) and kinds[0] else None
    if found and found not in COUNT_CONVENTIONS:
        draft.refuse("count_convention", draft.standing.copy(), f"with count convention {found!r}",
                     f"expected one of {', '.join(COUNT_CONVENTIONS)}")
    if found and declared and found != declared:
        draft.refuse("count_convention", draft.standing.copy(), f"with count convention {found!r}, but "
                     f"{declared!r} is declared", "declare what the table says")
    return found or declared or _shown_convention(draft) or "undeclared"


def _shown_convention(draft: Draft) -> str | None:
    usable = draft.standing & (draft.values("width") > 0)
    if not usable.any() or not usable[draft.standing].all():
        return None
    width = draft.values("width")[usable].astype(float)
    layers = (draft.values("n_once") + draft.values("n_rec") - np.nan_to_num(draft.values("n_inject")))[usable]
    for convention, layer in (("formula", 12 * width**2), ("exact", 12 * width**2 + 2 * width)):
        if np.all((layers >= layer) & (layers % layer == 0)):
            return convention
    return None


def place_injection(draft: Draft, injection: str) -> None:
    """Count the linear injection in n_once ("once") or not at all ("none") instead of in n_rec ("rec").

    Afterwards `n_inject`, the part inside n_rec, is 0. Rows with r = 1 or another scheme than linear have none.
    """
    if injection == "rec":
        return
    amount = draft.values("n_inject").copy()
    scheme = draft.values("scheme", "")
    none = (draft.values("r", NO_INT) == 1) | ((scheme != "") & (scheme != "linear"))
    amount[np.isnan(amount) & none] = 0.0
    lacking = draft.standing & np.isnan(amount)
    draft.refuse("n_inject", lacking, f"without n_inject, which injection={injection!r} needs",
                 "give the linear injection's parameters (2 d² for width d) as n_inject, 0 where there is none", ("r",))
    draft.table["n_rec"] = draft.values("n_rec") - amount
    if injection == "once":
        draft.table["n_once"] = draft.values("n_once") + amount
    draft.table["n_inject"] = np.zeros(len(amount))


def derive_probe(draft: Draft) -> None:
    """Name the recipe of each row that has no `probe`.

    Lanes → hyperconnections; bptt_k < r → truncated; r = 1, or linear with full backpropagation → baseline; any
    other scheme → its name. A table that says nothing of recipes is one recipe, called baseline.
    """
    r, scheme = draft.values("r", NO_INT), draft.values("scheme", "")
    lanes, k = draft.values("lanes", 0), draft.values("bptt_k", NO_INT)
    derived = np.where((scheme == "linear") | (r == 1), "baseline", scheme).astype(object)
    derived[(k != NO_INT) & (k < r)] = "truncated"
    derived[(lanes > 0) | (scheme == "hyperconnect")] = "hyperconnections"
    given = draft.values("probe", "")
    lacking = draft.standing & (given == "")
    unknown = lacking & (derived == "")
    if not (given != "").any() and "scheme" not in draft:
        derived[unknown] = "baseline"
        draft.note(unknown, "without any word on the recipe, taken as baseline")
    else:
        draft.refuse("probe", unknown, "without probe, which cannot be derived", "give probe, or scheme with bptt_k "
                     "and lanes", ("r", "scheme"))
    named = np.where(given == "", derived, given).astype(str)
    plain = pd.Series(named).str.casefold().str.strip()
    alike = pd.Series(named).groupby(plain).transform("nunique").to_numpy() > 1
    draft.warn("probe", draft.standing & alike, "of recipes whose names differ in capitals or spaces alone, taken as "
               "different ones", ("probe",))
    draft.table["probe"] = pd.Series(named, dtype=object)
