"""Several posteriors as one: draws of different laws, pooled by weight, so that what they disagree about shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import pandas as pd
import xarray as xr

from bayesloop.curves import MAX_DRAWS, expected_loss, runs_of, values_at
from bayesloop.errors import Place, get_errors, given
from bayesloop.laws import Design, get_law
from bayesloop.layout import Layout
from bayesloop.posterior import PosteriorError
from bayesloop.sampling import one_by_one

Posteriors = xr.DataTree | Sequence[xr.DataTree]


@dataclass(frozen=True)
class Pool:
    """Posteriors of the same runs under several laws or error models, each with a share of the draws.

    Attributes
    ----------
    posts : tuple of DataTree
    counts : tuple of int
        Draws taken from each.
    """

    posts: tuple[xr.DataTree, ...]
    counts: tuple[int, ...]

    @property
    def laws(self) -> list[str]:
        """Name of each posterior's law."""
        return [str(post.attrs["law"]) for post in self.posts]

    @property
    def first(self) -> xr.DataTree:
        """The posterior whose runs and conventions stand for all."""
        return self.posts[0]

    @property
    def converged(self) -> bool:
        """Whether every posterior has."""
        return all(post.attrs.get("converged") for post in self.posts)

    def expected_loss(self, design: Design, probe: str | Sequence[str]) -> np.ndarray:
        """Expected loss of designs, nats per token, shape (draw, run); a draw has the same row in every call."""
        return self._stacked([expected_loss(post, design, probe) for post in self.posts])

    def log_n_eff(self, design: Design, probe: str | Sequence[str]) -> np.ndarray:
        """Logarithm of the effective parameter count, shape (draw, run)."""
        parts = []
        for post in self.posts:
            parts.append(_log_n_eff(post, design, values_at(post, design.r, probe)))
        return self._stacked(parts)

    def observed_loss(self, design: Design, probe: str | Sequence[str], seed: int = 0) -> np.ndarray:
        """Losses that single runs of these designs would show: expected loss with the error model's scatter.

        Where runs miss together, given what the runs that were fitted missed by; each design is of a budget of its own.
        """
        parts = []
        for key, post in zip(jax.random.split(jax.random.key(seed), len(self.posts)), self.posts, strict=True):
            if get_errors(post.attrs["errors"]).factor is not None:
                parts.append(_observed_jointly(post, design, probe, key))
                continue
            mean = expected_loss(post, design, probe)
            scatter = get_errors(post.attrs["errors"]).loss(mean, np.zeros(1), values_at(post, design.r, probe))
            parts.append(np.asarray(scatter.sample(key)))
        return self._stacked(parts)

    def values(self, name: str, probe: str) -> np.ndarray:
        """Draws of a parameter that all runs of a probe share, shape (draw,)."""
        parts = []
        for post in self.posts:
            values = values_at(post, np.ones(1), probe)
            parts.append(np.broadcast_to(values[name], (max(map(len, values.values())), 1)))
        return self._stacked(parts)[:, 0]

    def _stacked(self, parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([part[np.linspace(0, len(part) - 1, count).astype(int)]
                               for part, count in zip(parts, self.counts, strict=True)])


def _log_n_eff(post: xr.DataTree, design: Design, values: dict[str, np.ndarray]) -> np.ndarray:
    part = np.asarray(get_law(post.attrs["law"]).log_n_eff(values.get("phi"), design))
    return np.broadcast_to(part, (max(map(len, values.values())), len(design.r)))


def _observed_jointly(post: xr.DataTree, design: Design, probe: str | Sequence[str], key: Any) -> np.ndarray:
    """Losses of new runs, each by itself, given those of the fitted runs, shape (draw, run)."""
    names = ["probe", "r", "n_once", "n_rec", "tokens", "budget", "loss", "loss_se"]
    seen = runs_of(post).reindex(columns=names)
    new = pd.DataFrame({**design._asdict(), "budget": 10 * seen["budget"].max(), "loss": 1.0, "loss_se": np.nan,
                        "probe": np.broadcast_to(np.asarray(probe, dtype=object), np.shape(design.r))})
    both = pd.concat([seen, new[names]], ignore_index=True).astype({"r": int})
    layout, errors = Layout.of(both), get_errors(post.attrs["errors"])
    values = values_at(post, layout.design.r, list(both["probe"]))
    mean = expected_loss(post, layout.design, list(both["probe"]))
    own = {name: np.broadcast_to(values[name], (len(mean), values[name].shape[1])) for name in errors.priors}
    counts = np.arange(len(both)) < len(seen)

    def one(mean: Any, own: Any, log_n_eff: Any, key: Any) -> Any:
        loss = errors.loss(mean, layout.log_se, own, Place.of(layout, log_n_eff))
        return given(loss, layout.loss, counts.astype(float)).sample(key)[len(seen):]

    keys = jax.random.split(key, len(mean))
    return np.asarray(jax.jit(partial(one_by_one, one))(
        mean, own, _log_n_eff(post, layout.design, values), keys))


def pool(posts: Posteriors, weights: Sequence[float] | None = None, force: bool = False) -> Pool:
    """Pool posteriors with equal or given weights.

    Parameters
    ----------
    posts : DataTree or sequence of DataTree
        Fits of the same runs, such as those of several laws.
    weights : sequence of float, optional
        One for each posterior, not negative; they are divided by their sum. Equal by default.
    force : bool
        Accept posteriors that did not converge.

    Returns
    -------
    Pool

    Raises
    ------
    PosteriorError
        If a posterior did not converge, they are of different runs, or the weights do not fit.
    """
    posts = (posts,) if isinstance(posts, xr.DataTree) else tuple(posts)
    if not posts:
        raise PosteriorError("no posterior given; `bayesloop fit RUNS --out FILE` writes one")
    for post in posts:
        if not post.attrs.get("converged") and not force:
            raise PosteriorError(f"the posterior of law {post.attrs['law']} did not converge "
                                 f"({post.attrs.get('verdict')}); sample longer, or use force=True (--force)")
    if len({str(post.attrs.get("data_sha256")) for post in posts}) > 1:
        raise PosteriorError("the posteriors are of different runs; pool fits of one table, by several laws")
    shares = np.ones(len(posts)) if weights is None else np.asarray(weights, float)
    if len(shares) != len(posts) or not np.isfinite(shares).all() or (shares < 0).any() or not shares.sum():
        raise PosteriorError(f"weights {[float(w) for w in shares]} for {len(posts)} posteriors; expected one number "
                             "≥ 0 for each, not all 0")
    kept = [(post, share) for post, share in zip(posts, shares / shares.sum(), strict=True) if share > 0]
    sizes = [min(MAX_DRAWS, post["posterior"].sizes["chain"] * post["posterior"].sizes["draw"]) for post, _ in kept]
    total = MAX_DRAWS if len(kept) > 1 else sizes[0]
    return Pool(tuple(post for post, _ in kept), tuple(max(round(total * share), 1) for _, share in kept))
