"""What the data did not decide: parameters that the prior still rules, and runs that a model looks past."""

from __future__ import annotations

import numpy as np
import xarray as xr

from bayesloop.errors import get_errors
from bayesloop.laws import LAWS
from bayesloop.posterior import elements, parameters

NARROWED = 0.5  # a posterior wider than this share of its prior says little that the prior did not


def doubts(post: xr.DataTree) -> list[str]:
    """Sentences about what a posterior leaves undecided; a sampler that has converged does not exclude them.

    Parameters
    ----------
    post : DataTree
        With the groups posterior, prior, constant_data and the attribute `law`.

    Returns
    -------
    list of str
        Where so: what the table lacks for a better model, what the error model misleads about, that no run has r = 1;
        one for each φ without runs, one for all parameters that the prior rules, one for runs whose r is ignored.
    """
    found = [str(post.attrs["choice"])] if post.attrs.get("choice_lacks") else []
    if warning := get_errors(post.attrs["errors"]).warning:
        found.append(warning)
    if "phi" in post["posterior"] and not (post["constant_data"]["r"] == 1).any():
        found.append("no run has r = 1: φ is told by how losses differ between recurrence counts alone, without the "
                     "anchor of a plain model")
    empty = cells_without_runs(post)
    if empty:
        names = ", ".join(f"phi[{probe}, {r}]" for probe, r in empty)
        found.append(f"no runs for {names}: what is shown there is the prior")
    ruled = {name: ratio for name, ratio in prior_ratios(post).items() if ratio > NARROWED}
    ruled = {name: ratio for name, ratio in ruled.items() if name not in {f"phi[{p}, {r}]" for p, r in empty}}
    if ruled:
        shown = ", ".join(f"{name} ({ratio:.0%} of its prior's width)" for name, ratio in ruled.items())
        found.append(f"prior-dominated: {shown}; the runs hardly decide it, and what depends on it stands or falls "
                     "with the prior" + _leaning(post, set(ruled)))
    if "phi" not in post["posterior"] and len(np.unique(post["constant_data"].to_dataset()["r"])) > 1:
        law = str(post.attrs["law"])
        if law not in LAWS or not LAWS[law].looped:
            found.append(f"law {law} knows no recurrence: runs of different r are treated alike")
    return found


def cells_without_runs(post: xr.DataTree) -> list[tuple[str, int]]:
    """The (probe, r) for which a posterior has a φ but no runs."""
    if "phi" not in post["posterior"] or not {"probe", "r"} <= set(post["posterior"]["phi"].dims):
        return []
    data = post["constant_data"].to_dataset()
    present = set(zip(data["probe"].values.tolist(), data["r"].values.tolist(), strict=True))
    phi = post["posterior"].to_dataset()["phi"]
    return [(str(probe), int(r)) for probe in phi["probe"].values for r in phi["r"].values
            if (str(probe), int(r)) not in present]


def prior_ratios(post: xr.DataTree) -> dict[str, float]:
    """Width of the posterior as a share of the prior's, by parameter with its coordinates in brackets.

    Width is the central 90 %, of the logarithm for parameters whose draws are all positive.
    """
    ratios = {}
    priors = post["prior"].to_dataset()
    for name, draws in parameters(post).items():
        prior = priors[name].to_numpy()
        positive = bool((prior > 0).all() and (draws.to_numpy() > 0).all())
        for label, place in elements(name, draws):
            own, before = draws.to_numpy()[(..., *place)], prior[(..., *place)]
            own, before = (np.log(own), np.log(before)) if positive else (own, before)
            ratios[label] = float(np.ptp(np.quantile(own, [0.05, 0.95])) / np.ptp(np.quantile(before, [0.05, 0.95])))
    return ratios


def _leaning(post: xr.DataTree, ruled: set[str]) -> str:
    """How much φ leans on E, where E is one of the parameters that the prior rules."""
    posterior = post["posterior"].to_dataset()
    if "E" not in ruled or "phi" not in posterior or posterior["E"].ndim > 2:
        return ""
    phi = posterior["phi"].values.reshape(posterior["E"].size, -1)
    lean = max((float(np.corrcoef(posterior["E"].values.ravel(), column)[0, 1]) for column in phi.T), key=abs)
    return f" (correlation of φ with E: {lean:+.2f})"
