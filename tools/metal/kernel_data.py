"""Numbers for kernels.py: random ones, as bytes of each type and back, and weights in the layouts that kernels read, with their values."""
import array, math, os, random, re, struct

RNG = random.Random(12)


def floats(n, scale=1.0):
    return array.array("f", (RNG.gauss(0, scale) for _ in range(n)))


def uints(*values):
    return array.array("I", values)


def halves(values):
    return bytearray(struct.pack(f"<{len(values)}e", *values))


def of_halves(data):
    return struct.unpack(f"<{len(data) // 2}e", data)


def bfloats(values):
    words = array.array("I", struct.pack(f"<{len(values)}f", *values))
    return array.array("H", ((w + 0x7fff + (w >> 16 & 1)) >> 16 for w in words))


def of_bfloats(data):
    words = array.array("I", (w << 16 for w in array.array("H", bytes(data))))
    return struct.unpack(f"<{len(words)}f", words.tobytes())


def one(value):
    """A number as an argument."""
    return array.array("f", [value]) if isinstance(value, float) else uints(value)


def rows_of(x, n):
    return [x[i:i + n] for i in range(0, len(x), n)]


def dots(x, w, k):
    """x [n, k] · w [m, k]ᵀ, row after row."""
    return [sum(map(float.__mul__, map(float, a), map(float, b))) for a in rows_of(x, k) for b in rows_of(w, k)]


def quantized(x, group, least=0.0):
    """Codes, scales, and what they stand for."""
    codes, scales, values = [], [], []
    for part in rows_of(x, group):
        most = max(max(abs(v) for v in part), least)
        inverse = 127.0 / most if most else 0.0
        own = [int(min(max(round(v * inverse), -128), 127)) for v in part]
        codes += own
        scales.append(most / 127)
        values += [c * most / 127 for c in own]
    return codes, scales, values


def weights(format, m, k):
    """Random weights in a layout: codes or elements, scales, and their values."""
    if format in ("f32", "f16", "bf16"):
        values = floats(m * k, 0.1)
        if format == "f32":
            return values, None, list(values)
        data = halves(values) if format == "f16" else bfloats(values)
        return data, None, list(of_halves(data) if format == "f16" else of_bfloats(data))
    if format == "f8":
        return float8_weights(m, k)
    block, bits, zero = {"q8": (32, 8, 0), "q4": (32, 4, 8), "t2": (256, 2, 1)}[format]
    codes = [RNG.randrange(-127, 128) if bits == 8 else RNG.randrange(16 if bits == 4 else 3) for _ in range(m * k)]
    scales = halves([RNG.uniform(0.01, 0.02) for _ in range(m * k // block)])
    values = [(c - zero) * s for c, s in zip(codes, (s for s in of_halves(scales) for _ in range(block)))]
    out = bytearray(m * k * bits // 8)
    for i, c in enumerate(codes):
        if bits == 8:
            out[i] = c & 255
        elif bits == 4:
            out[i // 32 * 16 + i % 16] |= c << (i // 16 % 2 * 4)
        else:
            out[i // 256 * 64 + i // 128 % 2 * 32 + i % 32] |= c << (i // 32 % 4 * 2)
    return out, scales, values


def float8_weights(m, k):
    """Random weights as floats of a byte with an f32 scale for each 128: codes, scales, values."""
    codes = bytearray(RNG.choice((0, 128)) + RNG.randrange(127) for _ in range(m * k))
    scales = array.array("f", [RNG.uniform(0.001, 0.002) for _ in range(m * k // 128)])
    exact = lambda c: (-1 if c > 127 else 1) * ((c & 7) / 512 if c & 120 == 0 else 2.0 ** ((c >> 3 & 15) - 7) * (1 + (c & 7) / 8))
    return codes, scales, [exact(c) * scales[i // 128] for i, c in enumerate(codes)]


def packed_types():
    """The rows of `kernels/packed.h`: bits of a code in the low and the high plane, elements of a record, what is taken off codes, whether codes
    are indices of a table, whether there are minimums, what scales are divided by, and what a record has for each so many elements. Then the tables."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    text = open(os.path.join(root, "crates", "hologram-gpu", "kernels", "shared", "packed.h")).read()
    kinds = {"ONE": None, "PAIRS": ("pairs", 32), "NIBBLES": ("nibbles", 16), "SIGNED_16": ("signed", 16), "SIGNED_32": ("signed", 32),
             "EXPONENT": ("exponent", 32), "FLOATS_16": ("float", 16), "WHOLE": ("whole", 128)}
    types = {}
    for name, numbers, factors in re.findall(r"^  DO\((\w+), \w+, ([\d, ]+), (\w+)\)", text, re.M):
        low, high, chunks, _, bias, table, minimum, divisor = map(int, numbers.split(", "))
        types[name] = (low, high, chunks * 32, bias, bool(table), bool(minimum), divisor, kinds[factors])
    tables = re.findall(r"^  DO\((\w+), (0x\w+)u, (0x\w+)u, (0x\w+)u, (0x\w+)u\)", text, re.M)
    return types, {name.lower(): list(struct.unpack("<16b", struct.pack("<4I", *(int(w, 16) for w in words)))) for name, *words in tables}


ALL_PACKED, TABLES = packed_types()
# Those whose codes are integers.
PACKED = {name: row for name, row in ALL_PACKED.items() if row[0] < 8}


def packed_weights(format, m, k):
    """Random weights in planes: low, high (None where there is none), records, values."""
    if format not in PACKED:
        codes, scales, values = float8_weights(m, k)
        return codes, None, bytearray(scales.tobytes()), values
    low_bits, high_bits, block, bias, table, minimum, divisor, factors = PACKED[format]
    low, high, records, values = bytearray(m * k * low_bits // 8), bytearray(m * k * high_bits // 8), bytearray(), []
    for at in range(0, m * k, block):
        numbers = of_halves(halves([RNG.uniform(1, 2) / (5000 if factors else 100) for _ in range(2)]))
        kind, run = factors or (None, block)
        if kind not in ("exponent", "float"):
            records += halves(numbers if minimum else numbers[:1])
        for part in range(at, at + block, run):
            scale, least = numbers[0] / divisor, -numbers[1] if minimum else 0.0
            if kind == "signed":
                f = RNG.randrange(-128, 128)
                records.append(f & 255)
                scale *= f
            elif kind == "exponent":
                records.append(RNG.randrange(118, 122))
                scale = 2.0 ** (records[-1] - 128)
            elif kind == "float":
                # Some are subnormal, one is 0.
                records.append(RNG.choice((127, 3, *range(8, 24))))
                e, f = records[-1] >> 3, records[-1] & 7
                scale = 0.0 if records[-1] == 127 else f / 1024 if e == 0 else 2.0 ** (e - 8) * (1 + f / 8)
            elif kind == "pairs":
                f = RNG.randbytes(2)
                records += f
                scale, least = scale * f[0], numbers[1] * f[1]
            elif kind == "nibbles":
                f = RNG.randrange(256)
                records.append(f)
                scale, least = scale * (f % 16), numbers[1] * (f // 16)
            for i in range(part, part + run):
                code, e = RNG.randrange(1 << low_bits + high_bits), i % 32
                values.append(scale * (TABLES[format][code] if table else code - bias) - least)
                lower, upper = code & (1 << low_bits) - 1, code >> low_bits
                # In twos of bits: word and byte by element, bits by the four within 16.
                two = lambda plane, v: (i // 32 * 8 + e // 16 * 4 + e % 4, v << e // 4 % 4 * 2)
                if low_bits == 2:
                    byte, bits = two(low, lower)
                elif table:
                    byte, bits = i // 32 * 16 + e // 2, lower << e % 2 * 4
                else:
                    byte, bits = i // 32 * 16 + e % 16, lower << e // 16 * 4
                low[byte] |= bits
                if high_bits:
                    byte, bits = two(high, upper) if high_bits == 2 else (i // 32 * 4 + e % 4, upper << e // 4)
                    high[byte] |= bits
    return low, high if high_bits else None, records, values


def of_four_bits(x):
    """Codes of 4 bits, two in a byte, their scales and the values, of a cache."""
    codes, scales, values = bytearray(), [], []
    for start in range(0, len(x), 32):
        block = x[start:start + 32]
        extreme = max(block, key=abs)
        scale = of_halves(halves([extreme / -8]))[0]
        of = [min(max(round(v * -8 / extreme), -8), 7) for v in block]
        codes += bytes(of[i] + 8 | of[i + 16] + 8 << 4 for i in range(16))
        scales.append(scale)
        values += [c * scale for c in of]
    return array.array("B", codes), halves(scales), values


FLOAT_BYTES = [(c & 7) / 512 if c < 8 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7) for c in range(127)]


def of_float_bytes(x):
    """The codes of the nearest floats of a byte, the even one of two, and their values."""
    codes = [min(range(127), key=lambda c: (abs(FLOAT_BYTES[c] - abs(v)), c & 1)) | (128 if v < 0 else 0) for v in x]
    return array.array("B", codes), values_of_bytes(codes)


def values_of_bytes(codes):
    return [math.copysign(FLOAT_BYTES[c & 127] if c & 127 < 127 else math.inf, -1 if c & 128 else 1) for c in codes]
