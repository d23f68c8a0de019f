"""What is watched while a run trains: when to evaluate it, and when to give it up."""

from __future__ import annotations

import math
from collections import deque

from training.grid import RunConfig

MEAN_WINDOW, MEAN_FACTOR, MEAN_PATIENCE, MEAN_AFTER = 50, 1.2, 200, 100
CHANCE_MARGIN, CHANCE_AFTER = 1.0, 50
FAST_EVALS, FAST_SHARE = 8, 0.01  # at most so many fast evaluations, and at most this share of the run's FLOPs


def eval_steps(config: RunConfig) -> set[int]:
    """Numbers of steps taken after which a fast evaluation runs: n/2, n/4, …, within 1 % of the run's FLOPs."""
    n_steps, arch = config.horizon.n_steps, config.architecture
    cost = config.fast_rows * arch.seq_len * arch.flops_per_token / 3  # a forward pass is a third of a training pass
    count = min(FAST_EVALS, int(FAST_SHARE * config.budget / cost))
    return {n_steps >> j for j in range(1, count + 1)} - {0}


class Divergence:
    """When to give a run up: a non-finite loss or gradient; a loss beyond ln V + 1 nats after step 50; or a loss above
    1.2 × the best running mean (of 50 steps) for 200 steps in a row after step 100."""

    def __init__(self, vocab_size: int) -> None:
        self.limit = math.log(vocab_size) + CHANCE_MARGIN
        self.window: deque[float] = deque(maxlen=MEAN_WINDOW)
        self.best, self.bad = math.inf, 0

    def check(self, step: int, loss: float, grad_norm: float) -> str:
        """Why the run has diverged at this step, or an empty string; called once for every step, in order."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return f"loss {loss}, gradient norm {grad_norm} at step {step}"
        if step > CHANCE_AFTER and loss > self.limit:
            return f"loss {loss:.3f} at step {step}, above ln V + {CHANCE_MARGIN:g} = {self.limit:.3f}"
        self.window.append(loss)
        if len(self.window) == MEAN_WINDOW:
            self.best = min(self.best, sum(self.window) / MEAN_WINDOW)
        self.bad = self.bad + 1 if step > MEAN_AFTER and loss > MEAN_FACTOR * self.best else 0
        if self.bad >= MEAN_PATIENCE:
            return f"loss above {MEAN_FACTOR} × its best mean {self.best:.3f} for {self.bad} steps, at step {step}"
        return ""
