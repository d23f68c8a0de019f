"""Posterior files: written whole, read back, open in ArviZ."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import bayesloop as bl
from bayesloop.posterior import PosteriorError


@pytest.fixture(scope="module")
def path(baseline_post: xr.DataTree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("posterior") / "posterior.nc"
    bl.save(baseline_post, path)
    return path


def test_round_trip(baseline_post: xr.DataTree, path: Path) -> None:
    back = bl.load(path)
    assert set(back.children) == set(baseline_post.children)
    for name, values in baseline_post["posterior"].data_vars.items():
        np.testing.assert_array_equal(back["posterior"][name].values, values.values)
    assert back.attrs == baseline_post.attrs
    assert list(back["constant_data"]["probe"].values[:2]) == ["baseline", "baseline"]


def test_opens_in_arviz(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the umbrella package announces its own changes
        import arviz

        opened = arviz.from_netcdf(str(path))
    phi = opened["posterior"]["phi"] if hasattr(opened, "children") else opened.posterior["phi"]
    assert phi.sizes == {"chain": 4, "draw": 1000, "probe": 1}


def test_what_is_not_a_posterior_gets_one_message(tmp_path: Path) -> None:
    (tmp_path / "text.nc").write_text("loss")
    xr.Dataset({"x": ("i", [1.0])}).to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    for name, expected in (("none.nc", "no such file"), ("text.nc", "not readable as netCDF"),
                           ("other.nc", "not a posterior written by bayesloop")):
        with pytest.raises(PosteriorError, match=expected) as caught:
            bl.load(tmp_path / name)
        assert name in str(caught.value)


def test_a_posterior_that_cannot_be_written_leaves_the_old_one(baseline_post: xr.DataTree, path: Path) -> None:
    before = path.read_bytes()
    broken = baseline_post.copy()
    broken.attrs["nothing"] = None
    with pytest.raises(Exception, match="HDF5"):
        bl.save(broken, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(PosteriorError, match="cannot be written"):
        bl.save(baseline_post, path.parent / "no_folder" / "p.nc")
