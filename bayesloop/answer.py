"""A posterior in words: the answer in two sentences, the method in a paragraph, the command that makes it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd
import xarray as xr

from bayesloop.comparison import OVER_R
from bayesloop.curves import runs_of
from bayesloop.errors import get_errors
from bayesloop.findings import Findings
from bayesloop.laws import Prior, get_law
from bayesloop.posterior import attribute
from bayesloop.structures import get_recipe, get_structure
from bayesloop.wording import many, percent, short

QUESTION = "How much is one recurrence worth?"


def answer(found: Findings) -> list[str]:
    """Two sentences with numbers; where a number would mislead, they say what is known instead.

    The first is about the reference recipe. The second is about the other recipes, or, where there are none, about
    the plain model that a looped one performs like.
    """
    if "phi" not in found.post["posterior"]:
        fixed = attribute(found.post, "fix").get("phi")
        reason = f"φ was fixed at {fixed:g}" if fixed is not None else f"the law {found.post.attrs['law']} has no φ"
        return [f"This posterior does not say: {reason}, so nothing was learned about it from "
                f"{many(len(found.tables['runs']), 'run')}.", "Fit a law with φ free to ask."]
    others = found.probes[1:]
    second = "; ".join(_other(found, probe) for probe in others) if others else _equal(found, found.reference)
    return [_first(found), f"{'Against it, ' if others else ''}{second if others else second[0].upper() + second[1:]}."]


def _first(found: Findings) -> str:
    subject = f"In the recipe {found.reference} " if found.probes else ""
    block = "a block run r times stands for r^φ blocks of its own"
    if not found.probes:
        row = found.tables["parameters"].filter(like="phi", axis=0).iloc[0]
        return (f"{block.capitalize()}, with φ = {row['mean']:.2f} ± {row['sd']:.2f} ({_interval(found, row, 'φ')}), "
                "between 0 (a recurrence adds nothing) and 1 (it is worth a block of its own).")
    rows = found.tables["comparison"]
    rows = rows[rows["probe"] == found.reference]
    row, name = rows.iloc[-1], f"φ[{found.reference}]"
    average, by_r = (" on average", f"{_by_r(rows, '')}; ") if "r" in rows else ("", "")
    return (f"{subject}{block}, with φ = {row['mean']:.2f} ± {row['sd']:.2f}{average} "
            f"({by_r}{_interval(found, row, name)}), "
            "between 0 (a recurrence adds nothing) and 1 (it is worth a block of its own).")


def _interval(found: Findings, row: pd.Series, name: str) -> str:
    """The interval, and the robust one where there is one."""
    return (f"{percent(found.prob)} interval [{row['lower']:.2f}, {row['upper']:.2f}]"
            f"{_robust(found, name, row['lower'], row['upper'])}")


def _robust(found: Findings, name: str, lower: float, upper: float) -> str:
    """The robust interval where it is the wider one."""
    robust = found.check.robust
    if not len(robust) or name not in robust.index:
        return ""
    own = robust.loc[name]
    if own["upper"] - own["lower"] <= upper - lower:  # few cells can scatter little by chance
        return ""
    return f"; [{own['lower']:.2f}, {own['upper']:.2f}] if runs of one budget and r may miss together"


def _by_r(rows: pd.DataFrame, prefix: str, sign: str = "") -> str:
    own = rows[rows["r"] != OVER_R]
    numbers = ", ".join(f"{value:{sign}.2f}" for value in own[f"{prefix}mean"])
    return f"{numbers} at r = {', '.join(own['r'])}"


def _other(found: Findings, probe: str) -> str:
    """What may be said of another recipe: a Δφ only where nothing speaks against a single one."""
    rows = found.tables["comparison"]
    rows = rows[rows["probe"] == probe]
    if probe in found.contradicted:
        text = _profile(found, probe, rows)
    elif probe in found.undecided:
        text = f"{probe} differs by a Δφ that cannot be told from what else the recipe may do"
    else:
        row = rows.iloc[-1]
        text = (f"{probe} differs by Δφ = {row['delta_mean']:+.2f} ± {row['delta_sd']:.2f} ({percent(found.prob)} "
                f"interval [{row['delta_lower']:+.2f}, {row['delta_upper']:+.2f}]"
                f"{_robust(found, f'Δφ[{probe}]', row['delta_lower'], row['delta_upper'])})")
    if found.assumptions:
        own = found.assumptions.table
        under = own.loc[(own["probe"] == probe) & (own["r"] == OVER_R), "delta_mean"]
        text += (f" (Δφ is {under.min():+.2f} to {under.max():+.2f} under {len(under)} assumptions about what else it "
                 "may do)")
    if probe in found.unanchored:
        adjusted = bool(get_recipe(found.post.attrs.get("recipe", "none")).priors)
        text += "; as no r = 1 run of it exists, " + (
            f"only how its gain changes with r tells that apart from what else the recipe does{_like(found, probe)}"
            if adjusted else f"its φ says what size of plain model it performs like{_like(found, probe)}, not that a "
            "recurrence is worth more")
    return text


def _profile(found: Findings, probe: str, rows: pd.DataFrame) -> str:
    """By r: Δφ where it is free, else the matched differences."""
    if "r" in rows:
        return f"{probe} differs by Δφ = {_by_r(rows, 'delta_', '+')}, which no single Δφ describes"
    own = found.tables["matched"]
    own = own[(own["probe"] == probe) & (own["r"] > 1)]
    seen, alone = (", ".join(f"{1e3 * value:+.0f}" for value in own[name]) for name in ("corrected", "pure"))
    at = ", ".join(map(str, own["r"]))
    mean = "" if found.assumptions else f" (the posterior's mean Δφ: {alone})"  # else more is said of it
    return (f"{probe} changes the loss at equal budget, r and width by {seen} mnats at r = {at}, which no single Δφ "
            f"does{mean}")


def _like(found: Findings, probe: str) -> str:
    """The sizes of one equivalent, in a clause; nothing where unknown."""
    row = _equivalent_row(found, probe)
    return "" if row is None else (
        f" ({short(row['n_unique'])} unique parameters at r = {row['r']} perform{_on(row)} like a plain "
        f"{short(row['n_equivalent'])})")


def _equal(found: Findings, probe: str) -> str:
    row = _equivalent_row(found, probe)
    if row is None:
        reason = found.absent.get("equivalent", "no looped run")
        return f"what size of plain model that makes is not told ({reason})"
    return (f"at r = {row['r']} and width {row['width']:.0f}, the widest that was run, {short(row['n_unique'])} unique "
            f"parameters perform{_on(row)} like a plain model of {short(row['n_equivalent'])} "
            f"[{short(row['n_equivalent_lower'])}, {short(row['n_equivalent_upper'])}], and cost "
            f"{row['cost_ratio']:.2f} times the training FLOPs per token of the plain model of that width, which has "
            f"{short(row['n_plain'])}")


def _on(row: Any) -> str:
    """On how many tokens, where it matters."""
    tokens = row.get("tokens", float("nan"))
    return f", on {short(tokens)} tokens," if tokens == tokens else ""


def _equivalent_row(found: Findings, probe: str) -> Any:
    """Of the middle recurrence count."""
    table = found.tables.get("equivalent")
    if table is None or not (table["probe"] == probe).any():
        return None
    own = table[table["probe"] == probe]
    return own.iloc[(len(own) - 1) // 2]


def methods(found: Findings) -> str:
    """What was done, as a paper's methods section would say it."""
    post, runs = found.post, found.tables["runs"]
    about = post.attrs
    law, errors = get_law(about["law"]), get_errors(about["errors"])
    structure, recipe = get_structure(about.get("phi", "probe")), get_recipe(about.get("recipe", "none"))
    budgets = runs["budget"].dropna()
    compute = f", budgets {budgets.min():.3g} to {budgets.max():.3g} FLOP" if len(budgets) else ""
    fixed = "".join(f"; {name} held at {value:g}" for name, value in attribute(post, "fix").items())
    share = "probes share every other parameter" if about["share"] == "law" else "each probe was fitted apart"
    return (
        f"{many(len(runs), 'run')} (r = {', '.join(str(r) for r in sorted(set(runs['r'])))}; "
        f"{short(runs['tokens'].min())} to {short(runs['tokens'].max())} tokens{compute}) were described by the "
        f"law {law.name}, {law.formula} ({law.source}), with {structure.meaning}; {share}; {recipe.meaning}{fixed}. "
        f"Error model {errors.name}: {errors.assumes.rstrip('.')}. The linear injection's parameters count in "
        f"{_injection(about)}. The posterior was sampled with the No-U-Turn sampler of NumPyro: "
        f"{about.get('num_chains', '?')} chains of {about.get('num_samples', '?')} draws after "
        f"{about.get('num_warmup', '?')} of warm-up, target acceptance {about.get('target_accept_prob', '?')}, in "
        f"float64, and {about.get('verdict', 'without a verdict')}. Intervals are equal-tailed with probability "
        f"{percent(found.prob)}; differences of φ are taken draw by draw. The robust spread is the sandwich variance "
        "over (budget, r) cells, from the posterior covariance with each cell's log likelihood (arXiv 2305.06466); "
        "held-out prediction is Pareto-smoothed leave-one-out (arXiv 1507.04544), sensitivity power scaling of prior "
        "and likelihood (arXiv 2107.14054).")


def _injection(about: Mapping[Any, Any]) -> str:
    return {"rec": "the shared block (n_rec)", "once": "n_once", "none": "neither count"}.get(
        str(about.get("data_injection")), "the place that the table has them")


def fit_command(post: xr.DataTree) -> str:
    """The command that makes the posterior again: law and structure of φ, and what differs from the defaults."""
    about = post.attrs
    words = ["bayesloop", "fit", str(about.get("data_source", "RUNS"))]
    defaults = {"errors": "normal", "share": "law", "recipe": "none"}
    options = {"--law": about["law"], "--phi": about.get("phi", "probe"), **{
        f"--{name}": about[name] for name, default in defaults.items() if about.get(name, default) != default}}
    if about.get("data_where"):
        options["--where"] = about["data_where"]
    if about.get("data_injection", "rec") not in ("rec", "unknown"):
        options["--injection"] = about["data_injection"]
    words += [str(word) for pair in options.items() for word in pair]
    words += _reading(attribute(post, "data_declared", {}))
    words += [word for name, value in attribute(post, "fix").items() for word in ("--fix", f"{name}={value:g}")]
    words += [word for name, prior in changed_priors(post).items() for word in ("--prior", f"{name}={prior}")]
    for option in ("num_chains", "seed"):
        if option in about:
            words += [f"--{option.replace('_', '-')}", str(about[option])]
    halved = 1 + bool(about.get("retries"))  # the one retry doubles both
    words += [word for option in ("num_warmup", "num_samples") if option in about
              for word in (f"--{option.replace('_', '-')}", str(int(about[option]) // halved))]
    return shlex.join([*words, "--out", "posterior.nc"])


def _reading(declared: Mapping[str, Any]) -> list[str]:
    """The options by which the table was read."""
    words = []
    for name in ("columns", "units"):
        words += [word for pair in declared.get(name, {}).items() for word in (f"--{name}", "=".join(pair))]
    words += [word for name in declared.get("allow", []) for word in ("--allow", name)]
    return words + [word for name in ("tokens_per_byte", "count_convention") if name in declared
                    for word in (f"--{name.replace('_', '-')}", str(declared[name]))]


def default_priors(post: xr.DataTree) -> dict[str, Prior]:
    """The default priors of a posterior's law, structure of φ, recipe term and error model."""
    about = post.attrs
    return {**get_structure(about.get("phi", "probe")).all_priors(get_law(about["law"])),
            **get_errors(about["errors"]).priors, **get_recipe(about.get("recipe", "none")).priors}


def changed_priors(post: xr.DataTree) -> dict[str, str]:
    """Priors that are not the defaults of law, structure, recipe term and error model."""
    defaults, used = default_priors(post), attribute(post, "priors", {})
    return {name: text for name, text in used.items() if name in defaults and text != str(defaults[name])}


def prior_table(post: xr.DataTree) -> pd.DataFrame:
    """Priors with their reasons; a changed one has none."""
    defaults, used, changed = default_priors(post), attribute(post, "priors", {}), changed_priors(post)
    return pd.DataFrame([{"parameter": name, "prior": text,
                          "reason": "chosen for this fit" if name in changed else defaults[name].reason
                          if name in defaults else ""} for name, text in used.items()])


def data_facts(post: xr.DataTree) -> dict[str, Any]:
    """Counts of what was fitted."""
    runs = runs_of(post)
    excluded = attribute(post, "data_excluded", [])
    return {"runs": len(runs), "excluded": len(excluded), "probes": list(dict.fromkeys(runs["probe"])),
            "recurrences": sorted({int(r) for r in runs["r"]}),
            "budgets": sorted({float(budget) for budget in runs["budget"].dropna()})}
