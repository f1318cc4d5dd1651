"""Tensors in files, as NumPy writes and reads them."""

import pytest

import hologram as hg

np = pytest.importorskip("numpy")

TYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


def test_bfloat16_comes_back(tmp_path):
    x = hg.asarray([[1.0, -2.5], [0.125, 3.0]], dtype=hg.bfloat16)
    hg.save(tmp_path / "x.npy", x)
    back = hg.load(tmp_path / "x.npy")
    assert back.dtype == hg.bfloat16 and back.tolist() == x.tolist()
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert np.load(tmp_path / "x.npy").view(ml_dtypes.bfloat16).tolist() == x.tolist()
    np.save(tmp_path / "y.npy", np.asarray(x))
    assert hg.load(tmp_path / "y.npy").dtype == hg.bfloat16 and hg.load(tmp_path / "y.npy").tolist() == x.tolist()


@pytest.mark.parametrize("name", TYPES)
def test_every_order_that_numpy_writes(tmp_path, name):
    dense = np.arange(24).reshape(2, 3, 4).astype(name)
    for array in (dense, np.asfortranarray(dense), dense.T, dense[:, 0], dense[0, 0, 0], dense[:0]):
        for order in "<>":
            own = np.asarray(array, dtype=array.dtype.newbyteorder(order))
            np.save(tmp_path / "x.npy", own)
            x = hg.load(tmp_path / "x.npy")
            assert x.dtype.name == name and x.shape == own.shape and x.tolist() == own.tolist()


def test_a_missing_folder_is_an_os_error(tmp_path):
    for name in ("none/x.npy", "none/x.safetensors"):
        tensors = hg.ones(2) if name.endswith("npy") else {"x": hg.ones(2)}
        with pytest.raises(FileNotFoundError):
            hg.save(tmp_path / name, tensors)
        with pytest.raises(FileNotFoundError):
            hg.load(tmp_path / name)
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(OSError):
        hg.save(tmp_path / "folder.npy", hg.ones(2))
    with pytest.raises(OSError):
        hg.load(tmp_path / "folder.npy")


def test_a_name_of_the_format_is_no_tensor(tmp_path) -> None:
    with pytest.raises(ValueError, match="__metadata__"):
        hg.save(tmp_path / "x.safetensors", {"__metadata__": hg.ones(2)})


def test_wrong_calls_of_save(tmp_path) -> None:
    path = tmp_path / "x.safetensors"
    for wrong in ([1], {"a": [1]}, {1: hg.ones(1)}, None):
        with pytest.raises(TypeError, match="tensors"):
            hg.save(path, wrong)
    # The number of the error is written once.
    with pytest.raises(FileNotFoundError) as caught:
        hg.load(path)
    assert str(caught.value).count("2") == str(path).count("2") + 1
