"""Optima of observed iso-FLOP sets without a law: polynomials in log size through the losses of one (r, budget)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bayesloop.selection import BUDGET_TOLERANCE

N_RESAMPLES = 400
PATH = 512  # points along which the lowest point of a polynomial is looked for


@dataclass(frozen=True)
class Polynomials:
    """Least-squares polynomials of one degree through the iso-FLOP sets of one probe and recurrence count.

    Attributes
    ----------
    budgets : array, shape (budget,)
    size, loss : array, shape (budget,)
        Parameters and loss at each minimum; NaN where a set has too few sizes or its minimum lies at an end of them.
    sizes : array, shape (resample, budget)
        Minima of polynomials through losses drawn anew: fitted loss plus scatter of the size of the residuals.
    """

    budgets: np.ndarray
    size: np.ndarray
    loss: np.ndarray
    sizes: np.ndarray


def polynomials(runs: pd.DataFrame, budgets: np.ndarray, degree: int = 2, seed: int = 0) -> Polynomials:
    """Fit a polynomial in log size to the runs of every budget.

    Parameters
    ----------
    runs : DataFrame
        Runs of one recurrence count: n_once, n_rec, budget, loss.
    budgets : array
        FLOP.
    degree : int
        2 as in arXiv 2604.21106, or 3 to see what the parabola's symmetry assumes.
    seed : int
        Of the resampled losses.
    """
    fits = [_fit(runs[np.isclose(runs["budget"], budget, rtol=BUDGET_TOLERANCE, atol=0)], degree)
            for budget in budgets]
    spare = sum(fit.spare for fit in fits if fit)
    scatter = np.sqrt(sum(fit.squares for fit in fits if fit) / spare) if spare else np.nan
    rng = np.random.default_rng(seed)
    nothing = np.full((N_RESAMPLES + 1, 2), np.nan)
    found = np.stack([fit.minima(scatter, rng) if fit else nothing for fit in fits], axis=1)
    return Polynomials(np.asarray(budgets, float), found[0, :, 0], found[0, :, 1], found[1:, :, 0])


@dataclass(frozen=True)
class _Fit:
    log_size: np.ndarray
    fitted: np.ndarray
    squares: float
    spare: int
    degree: int

    def minima(self, scatter: float, rng: np.random.Generator) -> np.ndarray:
        """Size and loss at the minimum: of the fit, then of resamples, shape (1 + resample, 2)."""
        noise = rng.normal(size=(N_RESAMPLES, len(self.fitted))) * np.nan_to_num(scatter)
        losses = self.fitted + np.vstack([np.zeros_like(self.fitted), noise])
        centre = self.log_size.mean()
        path = np.linspace(self.log_size.min(), self.log_size.max(), PATH)
        along = np.vander(path - centre, self.degree + 1)
        curves = losses @ np.linalg.pinv(np.vander(self.log_size - centre, self.degree + 1)).T @ along.T
        place, lowest = vertex(path, curves)
        return np.column_stack([np.exp(place), lowest])


def _fit(runs: pd.DataFrame, degree: int) -> _Fit | None:
    log_size = np.log((runs["n_once"] + runs["n_rec"]).to_numpy(float))
    if len(np.unique(log_size)) <= degree:
        return None
    basis, loss = np.vander(log_size - log_size.mean(), degree + 1), runs["loss"].to_numpy(float)
    fitted = basis @ np.linalg.lstsq(basis, loss, rcond=None)[0]
    return _Fit(log_size, fitted, float(((loss - fitted) ** 2).sum()), len(loss) - degree - 1, degree)


def vertex(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest point of curves between their points, by a parabola through the three around the lowest one.

    Parameters
    ----------
    x : array, shape (point,)
        Evenly spaced.
    y : array, shape (..., point)

    Returns
    -------
    x, y : arrays, shape (...)
        NaN where the lowest point is an end.
    """
    lowest = y.argmin(axis=-1)
    inside = (lowest > 0) & (lowest < len(x) - 1)
    at = np.clip(lowest, 1, len(x) - 2)
    left, middle, right = (np.take_along_axis(y, (at + step)[..., None], -1)[..., 0] for step in (-1, 0, 1))
    bend = np.maximum(left - 2 * middle + right, 1e-300)
    shift = np.clip((left - right) / (2 * bend), -0.5, 0.5)
    return (np.where(inside, x[at] + shift * (x[1] - x[0]), np.nan),
            np.where(inside, middle - (left - right) * shift / 4, np.nan))
