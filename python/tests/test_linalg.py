"""Decompositions against numpy's, and what they mean."""

import itertools

import numpy as np
import pytest

import hologram as hg

RANDOM = np.random.default_rng(7)
TYPES = (np.float32, np.float64)
SHAPES = [(1, 1), (3, 3), (5, 2), (2, 5), (20, 20), (33, 8), (2, 3, 4, 4), (3, 6, 2), (0, 3, 3), (2, 0, 0), (0, 2), (3, 0)]


def np_of(x):
    return np.asarray(x)


def close(got, want, dtype, scale=1.0):
    got = np_of(got)
    assert got.dtype == dtype and got.shape == want.shape
    bound = np.finfo(dtype).eps * 200 * max(1, scale)
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound)


def matrices(shape, dtype):
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype,shape", list(itertools.product(TYPES, SHAPES)))
def test_qr_and_svd(dtype, shape):
    a = matrices(shape, dtype)
    x = hg.asarray(a)
    rows, columns = shape[-2:]
    for mode in ("reduced", "complete"):
        q, r = hg.linalg.qr(x, mode=mode)
        width = rows if mode == "complete" else min(rows, columns)
        assert q.shape == (*shape[:-1], width) and r.shape == (*shape[:-2], width, columns)
        close(hg.matmul(q, r), a, dtype, columns)
        unit = np.broadcast_to(np.eye(width, dtype=dtype), (*shape[:-2], width, width))
        close(hg.matmul(q.mT, q), unit, dtype, rows)
        assert (np.tril(np_of(r), -1) == 0).all()
    values = hg.linalg.svdvals(x)
    close(values, np.linalg.svd(a, compute_uv=False), dtype, max(rows, columns))
    for full in (False, True):
        u, s, vh = hg.linalg.svd(x, full_matrices=full)
        k = min(rows, columns)
        assert u.shape == (*shape[:-2], rows, rows if full else k)
        assert vh.shape == (*shape[:-2], columns if full else k, columns)
        back = np_of(u)[..., :k] * np_of(s)[..., None, :] @ np_of(vh)[..., :k, :]
        np.testing.assert_allclose(back, a, atol=np.finfo(dtype).eps * 100)
        for basis in (np_of(u), np.swapaxes(np_of(vh), -1, -2)):
            unit = np.broadcast_to(np.eye(basis.shape[-1]), (*shape[:-2], basis.shape[-1], basis.shape[-1]))
            np.testing.assert_allclose(np.swapaxes(basis, -1, -2) @ basis, unit, atol=np.finfo(dtype).eps * 100)


@pytest.mark.parametrize("dtype,shape", list(itertools.product(TYPES, [s for s in SHAPES if s[-1] == s[-2]])))
def test_square_matrices(dtype, shape):
    a = matrices(shape, dtype) + 3 * np.eye(shape[-1], dtype=dtype)
    x, n = hg.asarray(a), shape[-1]
    wide = a.astype(np.float64)
    close(hg.linalg.det(x), np.linalg.det(wide).astype(dtype), dtype, n)
    sign, logarithm = hg.linalg.slogdet(x)
    want = np.linalg.slogdet(wide)
    close(sign, want.sign.astype(dtype), dtype)
    close(logarithm, want.logabsdet.astype(dtype), dtype, n)
    close(hg.linalg.inv(x), np.linalg.inv(wide).astype(dtype), dtype, 10 * n)
    close(hg.linalg.matrix_power(x, -2), np.linalg.matrix_power(wide, -2).astype(dtype), dtype, 100 * n)
    b = matrices((*shape[:-1], 3), dtype)
    close(hg.linalg.solve(x, hg.asarray(b)), np.linalg.solve(wide, b).astype(dtype), dtype, 10 * n)
    vector = matrices((n,), dtype)
    want = np.linalg.solve(wide, vector[:, None])[..., 0].astype(dtype)
    close(hg.linalg.solve(x, hg.asarray(vector)), want, dtype, 10 * n)

    symmetric = (a + np.swapaxes(a, -1, -2)) / 2
    values, vectors = hg.linalg.eigh(hg.asarray(symmetric))
    close(values, np.linalg.eigvalsh(symmetric.astype(np.float64)).astype(dtype), dtype, n)
    close(hg.linalg.eigvalsh(hg.asarray(symmetric)), np_of(values), dtype)
    v = np_of(vectors)
    np.testing.assert_allclose(symmetric @ v, v * np_of(values)[..., None, :], atol=np.finfo(dtype).eps * 300)
    unit = np.broadcast_to(np.eye(n), shape)
    np.testing.assert_allclose(np.swapaxes(v, -1, -2) @ v, unit, atol=np.finfo(dtype).eps * 100)

    positive = a @ np.swapaxes(a, -1, -2) + np.eye(n, dtype=dtype)
    want = np.linalg.cholesky(positive.astype(np.float64)).astype(dtype)
    close(hg.linalg.cholesky(hg.asarray(positive)), want, dtype, 10 * n)
    close(hg.linalg.cholesky(hg.asarray(positive), upper=True), np.swapaxes(want, -1, -2), dtype, 10 * n)


@pytest.mark.parametrize("dtype", TYPES)
def test_ranks_norms_and_pseudo_inverses(dtype):
    a = matrices((4, 7, 3), dtype) @ matrices((4, 3, 5), dtype)
    x = hg.asarray(a)
    assert np_of(hg.linalg.matrix_rank(x)).tolist() == [3, 3, 3, 3]
    assert np_of(hg.linalg.matrix_rank(hg.asarray(np.zeros((2, 3), dtype)))).tolist() == 0
    assert np_of(hg.linalg.matrix_rank(x, rtol=hg.asarray(np.full(4, 0.9999, dtype)))).tolist() == [1, 1, 1, 1]
    close(hg.linalg.pinv(x), np.linalg.pinv(a.astype(np.float64), rcond=1e-5).astype(dtype), dtype, 1000)
    for order in ("fro", "nuc", 1, -1, 2, np.inf, -np.inf):
        want = np.linalg.matrix_norm(a, ord=order)
        close(hg.linalg.matrix_norm(x, ord=order), want, dtype, 10)
        assert hg.linalg.matrix_norm(x, ord=order, keepdims=True).shape == (4, 1, 1)


def test_hard_matrices():
    hilbert = 1 / (np.arange(12)[:, None] + np.arange(12)[None] + 1.0)
    values, vectors = hg.linalg.eigh(hg.asarray(hilbert))
    np.testing.assert_allclose(np_of(values), np.linalg.eigvalsh(hilbert), atol=1e-15)
    np.testing.assert_allclose(np_of(hg.linalg.svdvals(hg.asarray(hilbert))), np.linalg.svd(hilbert)[1], atol=1e-15)
    # Equal eigenvalues, values of 0, sizes whose squares overflow or vanish, signs of 0.
    for a in (np.eye(6), np.zeros((4, 4)), np.ones((5, 5)), 1e200 * hilbert, 1e-200 * hilbert, -np.eye(3), np.diag([0.0, 2, 0])):
        values, vectors = map(np_of, hg.linalg.eigh(hg.asarray(a)))
        size = max(np.abs(a).max(), 1e-300)
        np.testing.assert_allclose(vectors * (values / size) @ vectors.T, a / size, atol=1e-13)
        u, s, vh = map(np_of, hg.linalg.svd(hg.asarray(a)))
        np.testing.assert_allclose(u * (s / size) @ vh, a / size, atol=1e-13)
        np.testing.assert_allclose(u.T @ u, np.eye(len(a)), atol=1e-13)
        q, r = map(np_of, hg.linalg.qr(hg.asarray(a)))
        np.testing.assert_allclose(q @ (r / size), a / size, atol=1e-13)
    for a in ([[np.nan, 1], [1, 2]], [[np.inf, 1], [1, 2]]):
        x = hg.asarray(np.array(a))
        assert np.isnan(np_of(hg.linalg.eigvalsh(x))).all() and np.isnan(np_of(hg.linalg.svdvals(x))).all()
        assert not np.isfinite(np_of(hg.linalg.det(x)))
    assert np_of(hg.linalg.det(hg.asarray(np.ones((2, 2))))) == 0
    assert [float(v) for v in hg.linalg.slogdet(hg.asarray(np.ones((2, 2))))] == [0, -np.inf]


def test_wrong_calls():
    a = hg.asarray([[1.0, 2.0], [2.0, 4.0]])
    for call, error, words in [
        (lambda: hg.linalg.inv(a), ValueError, "singular"),
        (lambda: hg.linalg.solve(a, hg.asarray([1.0, 2.0])), ValueError, "singular"),
        (lambda: hg.linalg.cholesky(-a), ValueError, "not positive definite"),
        (lambda: hg.linalg.det(hg.ones((2, 3))), ValueError, "square"),
        (lambda: hg.linalg.eigh(hg.ones((3,))), ValueError, "two dimensions"),
        (lambda: hg.linalg.svd(hg.ones((2, 2), dtype=hg.int32)), TypeError, "float32 or float64"),
        (lambda: hg.linalg.solve(hg.ones((2, 2)), hg.ones((3, 1))), ValueError, "do not fit"),
        (lambda: hg.linalg.qr(a, mode="raw"), ValueError, "complete"),
        (lambda: hg.linalg.matrix_norm(a, ord=3), ValueError, "nuc"),
    ]:
        with pytest.raises(error, match=words):
            call()
