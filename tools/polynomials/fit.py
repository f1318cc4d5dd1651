"""Prints the constants of crates/hologram-isa/src/decompose/. Needs mpmath only: `python3 fit.py`, or `python3 fit.py f64` for those of
binary64 (some minutes). `python3 fit.py inverse` prints those of crates/hologram-core/src/ops/elementwise/inverse.rs, for both types.

Each polynomial is the minimax fit of a smooth remainder g under a weight that turns the remainder's error into
the relative error of the whole function. Coefficients are rounded to binary32 (or binary64) one by one, lowest first, and the others
fitted again after each, so that later coefficients absorb the rounding of earlier ones.
"""
from mpmath import mp, mpf, matrix, lu_solve, cos, pi, exp, log, sin, tanh, erf, erfc, sqrt, floor, atan, atanh
import struct
import sys

mp.prec = 160


def f32(x):
    """The nearest binary32 value. Through binary64, whose double rounding is far below what matters here."""
    return mpf(struct.unpack("f", struct.pack("f", float(x)))[0])


def f64(x):
    """The nearest binary64 value."""
    return mpf(float(x))


def shown(x, rounded=f32):
    """The shortest decimal that reads back as the same number."""
    return next(t for t in (f"{float(x):.{n}g}" for n in range(1, 18)) if rounded(mpf(float(t))) == x)


def minimax(g, w, lo, hi, degree, first=0):
    """Lawson's iteration (least squares, reweighted by the error) for min max |w·(x^first·p(x) − g)|; lowest coefficient first."""
    points = [(lo + hi) / 2 - (hi - lo) / 2 * cos(pi * (2 * i + 1) / 240) for i in range(120)]
    rows = [([w(x) * x ** (first + k) for k in range(degree + 1)], w(x) * g(x)) for x in points]
    weights, best = [mpf(1)] * len(rows), None
    for _ in range(25):
        a, b = matrix(degree + 1, degree + 1), matrix(degree + 1, 1)
        for (row, target), u in zip(rows, weights):
            for i in range(degree + 1):
                b[i] += u * row[i] * target
                for j in range(degree + 1):
                    a[i, j] += u * row[i] * row[j]
        c = lu_solve(a, b)
        errors = [abs(sum(c[k] * row[k] for k in range(degree + 1)) - target) for row, target in rows]
        if best is None or max(errors) < best[1]:
            best = (list(c), max(errors))
        weights = [u * e for u, e in zip(weights, errors)]
        total = sum(weights)
        if total == 0:
            break
        weights = [u / total for u in weights]
    return best[0]


def fit(name, g, w, lo, hi, degree, rounded=f32):
    """Prints the coefficients of `name`, highest first, as a Horner scheme takes them."""
    fixed = []
    for k in range(degree + 1):
        rest = lambda x: g(x) - sum(c * x**i for i, c in enumerate(fixed))
        c = minimax(rest, w, mpf(lo), mpf(hi), degree - k, k)
        fixed.append(rounded(c[0]))
    error = max(
        abs(w(x) * (sum(c * x**i for i, c in enumerate(fixed)) - g(x)))
        for x in (lo + (hi - lo) * (i + mpf(1) / 2) / 2000 for i in range(2000))
    )
    print(f"{name}: relative error 2^{mp.nstr(log(error, 2), 4)}")
    print("    [" + ", ".join(shown(c, rounded) for c in reversed(fixed)) + "]")


def parts(name, value, count, rounded=f32):
    """Prints `value` as a sum of binary32 (or binary64) numbers."""
    out = []
    for _ in range(count):
        out.append(rounded(value - sum(out)))
    print(f"{name}: " + " + ".join(shown(p, rounded) for p in out))


def double():
    half_ln2 = log(2) / 2 * mpf("1.0001")
    fit("EXP: (e^r - 1 - r) / r²", lambda r: (exp(r) - 1 - r) / r**2, lambda r: r**2 / exp(r), -half_ln2, half_ln2, 9, f64)
    fit("EXP2: (2^r - 1) / r", lambda r: (2**r - 1) / r, lambda r: r / 2**r, mpf("-0.5"), mpf("0.5"), 10, f64)
    top, tiny = (3 - 2 * sqrt(mpf(2))) ** 2, mpf("1e-12")
    fit("LOG: (2·atanh(s)/s - 2) / s² in s²", lambda z: (2 * atanh(sqrt(z)) / sqrt(z) - 2) / z, lambda z: z * sqrt(z) / (2 * atanh(sqrt(z))), tiny, top, 6, f64)
    top = (pi / 4) ** 2 * mpf("1.001")
    fit("SIN: (sin r - r) / r³ in r²", lambda z: (sin(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, lambda z: sqrt(z) ** 3 / sin(sqrt(z)), tiny, top, 5, f64)
    fit("COS: (cos r - 1 + r²/2) / r⁴ in r²", lambda z: (cos(sqrt(z)) - 1 + z / 2) / z**2, lambda z: z**2 / cos(sqrt(z)), tiny, top, 5, f64)
    fit("TANH: (tanh x - x) / x³ in x², |x| < 0.75", lambda z: (tanh(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, lambda z: sqrt(z) ** 3 / tanh(sqrt(z)), tiny, mpf("0.75") ** 2, 12, f64)
    fit("ERF: (erf x - x) / x in x², |x| < 0.875", lambda z: erf(sqrt(z)) / sqrt(z) - 1, lambda z: sqrt(z) / erf(sqrt(z)), tiny, mpf("0.875") ** 2, 11, f64)
    at = lambda t: 1 / t - 2
    fit("ERFC: erfc(x)·exp(x²) in t = 1/(x + 2), 0.875 to 6", lambda t: erfc(at(t)) * exp(at(t) ** 2), lambda t: exp(-at(t) ** 2) / erf(at(t)), 1 / mpf(8), 1 / mpf("2.875"), 13, f64)
    parts("ln 2", log(2), 2, f64)
    parts("log2 e", 1 / log(2), 2, f64)
    parts("2·log2 e", 2 / log(2), 2, f64)
    parts("1/3", mpf(1) / 3, 2, f64)
    parts("π/2", pi / 2, 3, f64)
    words, mp.prec = 19, 1400
    bits = int(floor(2 / pi * mpf(2) ** (64 * words)))
    print("2/π: " + ", ".join(f"{bits >> (64 * (words - 1 - i)) & (1 << 64) - 1:#018x}" for i in range(words)))


def inverse():
    top = (sqrt(mpf(2)) - 1) ** 2 * mpf("1.0001")
    for rounded, tiny, (turns, powers) in [(f32, mpf("1e-6"), (4, 6)), (f64, mpf("1e-12"), (9, 12))]:
        fit("ATAN: (atan x - x) / x³ in x²", lambda z: (atan(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, lambda z: sqrt(z) ** 3 / atan(sqrt(z)), tiny, top, turns, rounded)
        growth = lambda x: exp(x) - 1
        fit("EXPM1: (e^x - 1 - x) / x², |x| < 0.7", lambda x: (growth(x) - x) / x**2, lambda x: x**2 / growth(x), mpf("-0.7"), mpf("0.7"), powers, rounded)
        parts("π/2", pi / 2, 2, rounded)
        parts("π", pi, 2, rounded)


def main():
    half_ln2 = log(2) / 2 * mpf("1.0001")
    fit("EXP: (e^r - 1 - r) / r²", lambda r: (exp(r) - 1 - r) / r**2, lambda r: r**2 / exp(r), -half_ln2, half_ln2, 4)
    fit("EXP2: (2^r - 1) / r", lambda r: (2**r - 1) / r, lambda r: r / 2**r, mpf("-0.5"), mpf("0.5"), 5)
    lo, hi = sqrt(mpf(1) / 2) - 1, sqrt(mpf(2)) - 1
    fit("LOG: (log(1+f) - f + f²/2) / f³", lambda f: (log(1 + f) - f + f**2 / 2) / f**3, lambda f: f**3 / log(1 + f), lo, hi, 7)
    fit("LOG2: (log2(1+f) - f·log2(e)) / f²", lambda f: (log(1 + f) - f) / log(2) / f**2, lambda f: f**2 * log(2) / log(1 + f), lo, hi, 8)
    top = (pi / 4) ** 2 * mpf("1.001")
    tiny = mpf("1e-6")
    fit("SIN: (sin r - r) / r³ in r²", lambda z: (sin(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, lambda z: sqrt(z) ** 3 / sin(sqrt(z)), tiny, top, 2)
    fit("COS: (cos r - 1 + r²/2) / r⁴ in r²", lambda z: (cos(sqrt(z)) - 1 + z / 2) / z**2, lambda z: z**2 / cos(sqrt(z)), tiny, top, 2)
    fit("TANH: (tanh x - x) / x³ in x², |x| < 0.75", lambda z: (tanh(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, lambda z: sqrt(z) ** 3 / tanh(sqrt(z)), tiny, mpf("0.75") ** 2, 6)
    fit("ERF: (erf x - x) / x in x², |x| < 0.875", lambda z: erf(sqrt(z)) / sqrt(z) - 1, lambda z: sqrt(z) / erf(sqrt(z)), tiny, mpf("0.875") ** 2, 6)
    fit("ERFC: log2(erfc x), 0.875 to 4", lambda x: log(erfc(x), 2), lambda x: erfc(x) * log(2) / erf(x), mpf("0.875"), mpf(4), 7)
    parts("ln 2", log(2), 2)
    parts("log2 e", 1 / log(2), 2)
    parts("π/2", pi / 2, 3)
    bits = floor(2 / pi * mpf(2) ** 224)
    print("2/π: " + ", ".join(f"{int(bits) >> (192 - 32 * i) & 0xFFFFFFFF:#010x}" for i in range(7)))


if __name__ == "__main__":
    mp.prec = 400
    {"f64": double, "inverse": inverse}.get(" ".join(sys.argv[1:]), main)()
