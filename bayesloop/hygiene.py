"""What goes wrong in tables of runs, and what is done about each.

Plainly unusable runs (no loss, diverged, a copy of another row) are excluded, counted and named. What is malformed or
could be meant in two ways is refused, so that a person decides. A tracker's state alone never excludes a run.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from bayesloop.draft import NO_INT, Draft
from bayesloop.schema import STATUSES
from bayesloop.selection import BUDGET_TOLERANCE

# Thresholds. Within one budget the losses of sane runs differ by 10 % (measured on data/paper_grid.csv: 1.05 × the
# median at most), an untrained model has ln(vocabulary), 3 to 4 × the loss of a trained one.
DIVERGED_FACTOR, HIGH_FACTOR = 3.0, 2.0
PERPLEXITY_LIKE = 8.0  # nats: a 32k vocabulary unused is 10.4; no trained model of it stays above 8
FEWEST_TOKENS = 1e4  # of all runs; the smallest training of a language model takes more
BITS_LIKE = 1.2  # below the entropy of text a token in nats; usual for bits per byte
SPENT_LEAST, SPENT_MOST = 0.9, 1.1  # flops / budget; rounding to whole steps moves it by 0.0004 (measured)
TOKENS_LEAST = 0.8  # of the tokens that smaller models' accounts imply
FLOPS_RATIO = (0.3, 4.0)  # 6 (n_once + r n_rec) tokens / flops: 0.45 … 0.99 on the paper's grid (measured)

STATES = {
    **{name: name for name in STATUSES}, "finished": "done", "completed": "done", "complete": "done", "success": "done",
    "succeeded": "done", "crashed": "failed", "killed": "failed", "error": "failed", "timeout": "failed",
    "cancelled": "failed", "canceled": "failed", "aborted": "failed", "preempted": "failed", "pending": "running",
    "queued": "running", "preempting": "running", "active": "running",
}
ALLOWABLE = ("partial", "running", "high_loss", "loss_scale", "twins", "flops")


def check_outcomes(draft: Draft) -> None:
    """Translate states; exclude runs that ended without a loss or diverged; refuse suspicious losses."""
    _translate_states(draft)
    loss, status = draft.values("loss"), draft.values("status", "")
    if "loss" not in draft:
        return
    standing = draft.standing
    draft.exclude("diverged", standing & (status == "diverged"), "status says diverged", ("loss",))
    failed = draft.standing & (status == "failed") & (np.isnan(loss) | (loss == 0))
    draft.exclude("unfinished", failed, "failed, and there is no loss")
    nothing = draft.standing & (loss == 0)
    draft.exclude("unfinished", nothing, "unfinished: loss is 0")
    said_nan = np.array([str(cell).strip().lower().lstrip("+-") == "nan" for cell in draft.raw["loss"]])
    empty = draft.standing & np.isnan(loss)
    draft.exclude("unfinished", empty & (~said_nan | (status == "running")), "unfinished: there is no loss")
    draft.exclude("diverged", draft.standing & ~np.isfinite(loss), "diverged or without a loss", ("loss",))
    draft.refuse("loss", draft.standing & (loss < 0), "with a negative loss", "expected nats per token, above 0",
                 ("loss",))
    _check_loss_scale(draft)


def _translate_states(draft: Draft) -> None:
    if "status" not in draft:
        return
    said = pd.Series(draft.values("status")).str.lower()
    unknown = draft.standing & ~said.isin([*STATES, ""]).to_numpy()
    draft.refuse("status", unknown, "with an unknown status", f"expected one of {', '.join(STATES)}; leave the column "
                 "out if it says something else", ("status",))
    draft.table["status"] = said.map({**STATES, "": ""}).fillna("").astype(object)


def _check_loss_scale(draft: Draft) -> None:
    """Perplexity, bits per byte, and single losses far above their like."""
    loss, vocab = draft.values("loss"), draft.values("vocab_size", NO_INT)
    standing = draft.standing.copy()
    if not standing.any():
        return
    if loss[standing].min() > PERPLEXITY_LIKE:
        draft.refuse("loss_scale", standing, f"with every loss above {PERPLEXITY_LIKE:g}: perplexities?",
                     "declare units={'loss': 'perplexity'} (--units "
                     "loss=perplexity) if so; expected nats per token", ("loss",), can_allow=True)
        return
    like = _median_of_budget(draft, loss)
    ceiling = np.where(vocab > 1, np.log(np.maximum(vocab, 2)) + 1, np.inf)
    draft.exclude("diverged", standing & (loss > DIVERGED_FACTOR * like), "diverged: loss above "
                  f"{DIVERGED_FACTOR:g} × the median of its budget", ("loss",))
    draft.exclude("diverged", draft.standing & (loss > ceiling), "diverged: loss above ln(vocabulary) + 1", ("loss",))
    overall = DIVERGED_FACTOR * np.median(loss[standing])
    high = draft.standing & ((loss > HIGH_FACTOR * like) | (np.isnan(like) & (loss > overall)))
    draft.refuse("high_loss", high, f"whose loss is above {HIGH_FACTOR:g} × the median of its budget, or without "
                 f"budget above {DIVERGED_FACTOR:g} × that of all: diverged, or another unit?", "remove them, or give "
                 "them status diverged", ("loss",), can_allow=True)
    bytewise = (vocab > 1) & (vocab <= 1024)
    low = np.median(loss[standing]) < BITS_LIKE and not bytewise[standing].any()
    if low and "loss_scale" not in draft.ledger.allow:
        draft.warn("loss_scale", standing, f"with half of the losses below {BITS_LIKE:g}: bits per byte? if so "
                   "declare units={'loss': 'bit/byte'} with tokens_per_byte (--units "
                   "loss=bit/byte --tokens-per-byte …)", ("loss",))


def _median_of_budget(draft: Draft, loss: np.ndarray) -> np.ndarray:
    """Median loss of the standing rows of the same budget; NaN where a budget has fewer than three."""
    frame = pd.DataFrame({"budget": draft.values("budget"), "loss": np.where(draft.standing, loss, np.nan)})
    groups = frame.groupby("budget")["loss"]
    median = groups.transform("median").to_numpy()
    return np.where(groups.transform("count").to_numpy() >= 3, median, np.nan)


def check_values(draft: Draft) -> None:
    """Refuse missing, non-finite and impossible values of the rows that stand."""
    for name in ("tokens", "n_once", "n_rec", "budget", "flops", "size", "loss_se", "n_inject", "r", "width"):
        if name not in draft:
            continue
        values = draft.values(name).astype(float)
        needed = name in ("tokens", "n_once", "n_rec", "r")
        present = draft.present(name)
        bad = present & ~np.isfinite(values)
        least = 0 if name in ("n_once", "n_rec", "n_inject", "loss_se") else 1 if name in ("r", "width") else None
        bad |= present & ((values <= 0) if least is None else (values < least))
        if needed:
            bad |= ~present
        limit = "above 0" if least is None else f"≥ {least}"
        draft.refuse(name, draft.standing & bad, f"whose {name} is missing or impossible" if needed else
                     f"whose {name} is impossible", f"expected a finite number {limit}", (name,))
    tokens = draft.values("tokens")
    blind = not any(name in draft and draft.present(name)[draft.standing].any() for name in ("budget", "flops"))
    if blind and draft.standing.any() and tokens[draft.standing].max() < FEWEST_TOKENS:
        draft.refuse("tokens", draft.standing.copy(), f"with fewer than {FEWEST_TOKENS:g} tokens each: millions or "
                     "billions?", "declare units={'tokens': 'B'} (--units tokens=B) if so; expected tokens",
                     ("tokens",))
    r, once, rec = draft.values("r", NO_INT), draft.values("n_once"), draft.values("n_rec")
    draft.refuse("n_rec", draft.standing & (r > 1) & (rec == 0), "with recurrence but without parameters in the shared "
                 "block", "expected n_rec > 0 where r > 1", ("r", "n_rec"))
    draft.refuse("n_rec", draft.standing & (once + rec == 0), "without any parameters", "expected n_once + n_rec > 0",
                 ("n_once", "n_rec"))
    draft.refuse("n_inject", draft.standing & (draft.values("n_inject") > rec), "with more parameters in the injection "
                 "than in the block that holds it", "n_rec includes n_inject", ("n_inject", "n_rec"))
    k, lanes = draft.values("bptt_k", NO_INT), draft.values("lanes", NO_INT)
    draft.refuse("bptt_k", draft.standing & (k != NO_INT) & ((k < 1) | (k > r)), "with impossible bptt_k",
                 "expected 1 ≤ bptt_k ≤ r", ("bptt_k", "r"))
    draft.refuse("lanes", draft.standing & (lanes != NO_INT) & ((lanes < 0) | (lanes == 1)), "with impossible lanes",
                 "expected 0 or at least 2", ("lanes",))


def merge_budgets(draft: Draft) -> None:
    """Give budgets within 1 % of each other one value, the first seen, so that equal means equal."""
    budget = draft.values("budget").copy()
    leaders: list[float] = []
    moved = np.zeros(len(budget), dtype=bool)
    for i in np.flatnonzero(draft.standing & draft.present("budget")):
        leader = next((b for b in leaders if abs(budget[i] - b) <= BUDGET_TOLERANCE * b), None)
        if leader is None:
            leaders.append(float(budget[i]))
        elif leader != budget[i]:
            budget[i], moved[i] = leader, True
    if moved.any():
        draft.note(moved, "with a budget within 1 % of another got that value", ("budget",))
        draft.table["budget"] = budget
