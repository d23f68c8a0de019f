"""What can be wrong with a table of runs, as data: one exception, one warning, and a ledger of findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from bayesloop.schema import InputError

SHOWN = 5  # places a message lists before it only counts


class RunsError(InputError):
    """A table of runs that cannot be used as it is; the message says what, where, what was expected, what to do.

    Attributes
    ----------
    problems : list of Problem
        Every finding, where several were made; empty where the message stands alone.
    """

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = list(problems)


class RunsWarning(UserWarning):
    """Rows were excluded, or something about the table looks doubtful."""


@dataclass(frozen=True)
class Problem:
    """One kind of finding: the check that made it, how many cells or rows it concerns, where the first ones are."""

    check: str
    message: str
    count: int
    places: tuple[str, ...] = ()


@dataclass
class Ledger:
    """Everything found out about one source while it is read.

    Attributes
    ----------
    source : str
        The source as given; every message starts with it.
    allow : frozenset of str
        Checks whose findings become notes instead of problems.
    problems, excluded, notes, warnings : list
        What stops the table, which rows were left out (`run_id`, `row`, `reason`), and what else to know.
    counts : dict of str to int
        Rows or cells found by each check.
    """

    source: str
    allow: frozenset[str] = frozenset()
    problems: list[Problem] = field(default_factory=list)
    excluded: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def refuse(self, check: str, found: str, expected: str, places: Sequence[str] = (),
               can_allow: bool = False) -> None:
        """Record a problem, or a note if the check is allowed and may be."""
        count = max(len(places), 1)
        self.counts[check] = self.counts.get(check, 0) + count
        message = f"{found}{listed(places)}; {expected}"
        if can_allow and check in self.allow:
            self.notes.append(f"allowed by allow=[{check!r}]: {message}")
            return
        if can_allow:
            message += f"; or keep them with allow=[{check!r}] (--allow {check})"
        self.problems.append(Problem(check, message, count, tuple(places[:SHOWN])))

    def exclude(self, check: str, run_id: str, row: str, reason: str) -> None:
        """Record one row that is left out."""
        self.counts[check] = self.counts.get(check, 0) + 1
        self.excluded.append({"run_id": run_id, "row": row, "reason": reason})

    def warn(self, check: str, message: str, count: int = 1) -> None:
        """Record a doubt that stops nothing."""
        self.counts[check] = self.counts.get(check, 0) + count
        self.warnings.append(message)

    def error(self) -> RunsError:
        """The one exception that tells all problems."""
        if len(self.problems) == 1:
            return RunsError(f"{self.source}: {self.problems[0].message}", self.problems)
        lines = "".join(f"\n  {i}. {problem.message}" for i, problem in enumerate(self.problems, 1))
        return RunsError(f"{self.source}: {len(self.problems)} problems{lines}", self.problems)


def listed(places: Sequence[Any], shown: int = SHOWN) -> str:
    """`: a, b, c and 4 more`, or nothing for no places."""
    if not len(places):
        return ""
    more = f" and {len(places) - shown} more" if len(places) > shown else ""
    return ": " + ", ".join(str(place) for place in places[:shown]) + more


def near(name: str, known: Iterable[str], words: Sequence[str] = ()) -> str:
    """`; did you mean x?` for the known name nearest to `name`, or nothing.

    Nearest is the shortest that contains the name or one of other words for it, else the one spelt most alike.
    """
    by_lower = {other.lower(): other for other in known}
    parts = [part for part in (name.lower(), *words) if len(part) > 2]
    within = [other for other in by_lower if any(part in other for part in parts) or other in words]
    close = sorted(within, key=len) or get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
