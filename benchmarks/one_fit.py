"""One fit in a fresh process, from the start of Python to the posterior on disk; `benchmarks.inference` calls it.

    python -m benchmarks.one_fit RUNS OUT [--where CONDITION] [--cache]

Prints one line of JSON: seconds since the process started at the end of each stage, and peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time


def since_start() -> float:
    """Seconds since this process started (Linux)."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs")
    parser.add_argument("out")
    parser.add_argument("--where")
    parser.add_argument("--cache", action="store_true", help="use JAX's persistent compilation cache, as the CLI does")
    args = parser.parse_args()
    stages = {"python": since_start()}
    if args.cache:
        from bayesloop.compilation import enable_cache
        enable_cache()
    from bayesloop import fit, read_runs, save, select
    stages["imports"] = since_start()
    runs = read_runs(args.runs)
    if args.where:
        runs = select(runs, args.where)
    stages["read"] = since_start()
    post = fit(runs)
    stages["fit"] = since_start()
    save(post, args.out)
    stages["saved"] = since_start()
    cpu = time.process_time()
    print(json.dumps({"stages": stages, "cpu_s": cpu, "runs": len(runs), "converged": post.attrs["converged"],
                      "n_steps": float(post["sample_stats"]["n_steps"].mean()),
                      "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                      "file_mib": os.path.getsize(args.out) / 2**20}))


if __name__ == "__main__":
    main()
