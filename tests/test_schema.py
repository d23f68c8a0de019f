"""Run and sweep files: what is written is read back, by us, by xarray and after a failure."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from bayesloop import schema
from bayesloop.schema import Run, SchemaError, read_run, read_sweep, write_run, write_sweep


def make_run(name: str = "a") -> Run:
    step = np.arange(5)
    train = {"step": step, "loss": np.linspace(3, 2, 5), "tokens": 512 * (step + 1)}
    final = {"step": np.array([4]), "loss": np.array([2.0]), "kind": np.array([1], dtype=np.uint8)}
    attrs = {"run_id": name, "probe": "baseline", "r": 4, "n_once": 24_704, "n_rec": 26_752, "tokens": 2560,
             "loss": 2.0, "status": "done"}
    return Run(attrs, train, final)


def test_run_file_round_trip(tmp_path: Path) -> None:
    run = make_run()
    write_run(tmp_path / "curve.h5", run)
    back = read_run(tmp_path / "curve.h5")
    assert back.attrs == run.attrs
    for name in ("train", "eval"):
        for key, values in getattr(run, name).items():
            np.testing.assert_array_equal(getattr(back, name)[key], values)


def test_xarray_opens_run_and_sweep_files(tmp_path: Path) -> None:
    write_run(tmp_path / "curve.h5", make_run())
    with xr.open_dataset(tmp_path / "curve.h5", engine="h5netcdf", group="train") as curve:
        assert curve["loss"].dims == ("step",)
        assert curve["loss"].attrs["units"] == "nat/token"
    write_sweep(tmp_path / "sweep.h5", [make_run("a"), make_run("b")])
    with xr.open_datatree(tmp_path / "sweep.h5", engine="h5netcdf") as tree:
        assert list(tree["summary"]["run"].values) == ["a", "b"]
        assert tree["runs/b/train"]["loss"].dims == ("step",)
    assert [run.attrs["run_id"] for run in read_sweep(tmp_path / "sweep.h5")] == ["a", "b"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "curve.h5"
    write_run(path, make_run("old"))
    broken = make_run("new")
    broken.train["loss"] = broken.train["loss"][:-1]
    with pytest.raises(SchemaError, match="expected equal lengths"):
        write_run(path, broken)
    assert read_run(path).attrs["run_id"] == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_unreadable_files_get_one_clear_message(tmp_path: Path) -> None:
    cut, text, empty = tmp_path / "cut.h5", tmp_path / "text.h5", tmp_path / "empty.h5"
    write_run(cut, make_run())
    cut.write_bytes(cut.read_bytes()[:1000])
    text.write_text("loss,r\n")
    h5py.File(empty, "w").close()
    for path, expected in ((cut, "truncated file"), (text, "not readable as HDF5"), (empty, "no attribute run_id"),
                           (tmp_path / "none.h5", "no such file")):
        with pytest.raises(SchemaError, match=expected) as caught:
            read_run(path)
        assert str(path) in str(caught.value)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "new.h5", "w") as file:
        file.attrs["schema_version"], file.attrs["run_id"] = "2.0", "a"
    with pytest.raises(SchemaError, match=r"schema version 2\.0"):
        read_run(tmp_path / "new.h5")


def test_attributes_must_be_scalars_and_ids_unique(tmp_path: Path) -> None:
    run = make_run()
    run.attrs["nothing"] = None
    with pytest.raises(SchemaError, match="nothing is None"):
        write_run(tmp_path / "a.h5", run)
    with pytest.raises(SchemaError, match="repeated a"):
        write_sweep(tmp_path / "s.h5", [make_run("a"), make_run("a")])


def test_every_column_states_a_unit_and_a_meaning() -> None:
    for column in schema.COLUMNS.values():
        assert column.unit
        assert column.meaning
    assert set(schema.CURVE_UNITS) == set(schema.CURVE_NAMES)
