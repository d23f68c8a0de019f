"""JAX's persistent compilation cache, for the command line: the second fit of a kind need not compile again."""

from __future__ import annotations

import os
from pathlib import Path


def enable_cache() -> None:
    """Keep compiled programs in the user's cache folder, unless BAYESLOOP_CACHE is `off`.

    The folder is `bayesloop/jax` under XDG_CACHE_HOME, or under `~/.cache`. A folder that JAX has been given already
    stays as it is.
    """
    import jax

    if os.environ.get("BAYESLOOP_CACHE", "").lower() == "off" or getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesloop" / "jax"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
