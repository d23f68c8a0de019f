"""The main job on the paper's runs, start to end: its point fits redone, the posterior of φ, Δφ by probe, figures."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from bayesloop.comparison import compare
from bayesloop.console import print_table, progress, say, show_comparison, show_posterior
from bayesloop.files import make_folder
from bayesloop.inference import fit
from bayesloop.plots import comparison_figure, iso_flop_figure
from bayesloop.pointfit import point_fit
from bayesloop.posterior import save
from bayesloop.reproduction import LOW, PER_R, PHI_INTERVAL, reproduce
from bayesloop.runs import read_runs
from bayesloop.selection import anchored, select
from bayesloop.style import save_figure

ROPE = 0.05  # moves the expected loss of an r = 4 model of the lower budgets by 6 to 10 mnats (measured)


def run_demo(runs: pd.DataFrame, out: Path, seed: int) -> bool:
    """Run and print everything; write posteriors and figures to a folder.

    Parameters
    ----------
    runs : DataFrame
        The paper's runs, injection counted in n_rec.
    out : Path
        Folder, created if missing.
    seed : int

    Returns
    -------
    bool
        Whether all posteriors converged.
    """
    make_folder(out)
    _show_reproduction(runs, seed)
    baseline = select(runs, "probe == 'baseline'")
    three = select(runs, LOW)
    fits = {"baseline": (baseline, "recurrence"), "probes": (three, "recurrence"), "probes_default": (three, None)}
    posts = {}
    for name, (table, law) in fits.items():
        with progress(f"sampling {name}") as advance:
            posts[name] = fit(table, law, seed=seed, progress=advance)
        save(posts[name], out / f"{name}.nc")
        show_posterior(posts[name], out / f"{name}.nc", title=f"Posterior of φ, {name}")
    if not all(post.attrs["converged"] for post in posts.values()):
        return False
    comparison = compare(posts["probes"], rope=ROPE)
    say("\nThe paper's law, one φ for each recipe:")
    show_comparison(comparison)
    say("\nThe default of `bayesloop fit` for several recipes:")
    show_comparison(compare(posts["probes_default"], rope=ROPE))
    save_figure(comparison_figure(posts["probes"], rope=ROPE), out / "phi_by_probe")
    save_figure(comparison_figure(posts["probes_default"], rope=ROPE), out / "phi_by_probe_default")
    save_figure(iso_flop_figure(posts["baseline"], "baseline"), out / "iso_flop_baseline")
    for probe in comparison["probe"]:
        save_figure(iso_flop_figure(posts["probes"], probe), out / f"iso_flop_lower_budgets_{probe}")
    say(f"figures (SVG and PNG) and posteriors are in {out}")
    return True


def _show_reproduction(runs: pd.DataFrame, seed: int) -> None:
    """The published point fits beside ours, with the injection counted as the paper's numbers imply."""
    once = read_runs(runs, injection="once")
    with progress("point fits") as advance:
        table = reproduce(once, seed=seed, progress=advance)
    per_r = table["fit"].isin([each.name for each in PER_R])
    _show_fits(table[~per_r], ["phi", "alpha", "beta", "E", "r2"], "Point fits, injection in n_once")
    _show_fits(table[per_r], ["A", "alpha", "B", "beta", "E", "r2"], "Chinchilla law, each r by itself")
    joint = anchored(once, "baseline")
    with progress("bootstrap") as advance:
        bootstrap = point_fit(joint, seed=seed, progress=advance).bootstrap
    if bootstrap:
        lower, upper = bootstrap.interval("phi")
        say(f"block bootstrap over (budget, r) cells, 95 % interval of φ: [{lower:.2f}, {upper:.2f}] "
            f"(published [{PHI_INTERVAL[0]:.2f}, {PHI_INTERVAL[1]:.2f}])")
    say(f"with the injection in n_rec, as the paper's text has it: φ = "
        f"{point_fit(anchored(runs, 'baseline'), num_bootstrap=0, seed=seed).parameters['phi']:.3f}")


def _show_fits(table: pd.DataFrame, numbers: list[str], title: str) -> None:
    rows = []
    for name, own in table.groupby("fit", sort=False):
        values = own.set_index("number")
        for source in ("ours", "published"):
            found = {number: values[source].get(number, float("nan")) for number in numbers}
            rows.append({"fit": name if source == "ours" else "", "": source, **found})
    print_table(pd.DataFrame(rows), title)
