// The order of the elements of rows, by a bitonic network (Batcher, 1968) of 64-bit keys: an element's key above its index, so that no two are equal
// and equal elements keep their order.
#include "dialect.h"

typedef ulong Key;
enum : uint { F32, F16, BF16, I32, U32 };
#define V 8
HOST(V)

// A key with the order of the elements: NaN after +∞, −0 as +0.
FN uint key_of(const void *x, size_t i, uint type)
{
    if (type == U32) return ((const uint *)x)[i];
    if (type == I32) return ((const uint *)x)[i] ^ 0x80000000u;
    const float v = (type == F32 ? ((const float *)x)[i] : type == F16 ? __half2float(((const half *)x)[i]) : __bfloat162float(((const __nv_bfloat16 *)x)[i])) + 0.0f;
    const uint bits = __float_as_uint(v);
    return v != v ? ~0u : bits ^ ((uint)((int)bits >> 31) | 0x80000000u);
}

// A thread has V neighbours of the order: distances below V lie in it, those below 32 V in its warp.
template <uint THREADS> FN void sort_row(const void *x, uint *y, uint n, uint type, bool descending, Key *exchange)
{
    const uint t = threadIdx.x;
    Key k[V];
    UNROLL for (uint e = 0; e < V; ++e) {
        const uint i = e * THREADS + t;
        // Places beyond the row come last.
        k[e] = ~0ull;
        if (i < n) {
            const uint key = key_of(x, i, type);
            k[e] = (Key)(descending ? ~key : key) << 32 | i;
        }
    }
    ROLLED for (uint run = 2; run <= THREADS * V; run *= 2) {
        ROLLED for (uint distance = run / 2; distance >= V; distance /= 2) {
            const uint other = distance / V;
            // The lesser of a pair goes to its first place, if the run rises.
            const bool least = ((t & other) == 0) == ((t * V & run) == 0);
            if (other >= 32) {
                BARRIER();
                UNROLL for (uint e = 0; e < V; ++e) exchange[e * THREADS + t] = k[e];
                BARRIER();
            }
            UNROLL for (uint e = 0; e < V; ++e) {
                const Key theirs = other >= 32 ? exchange[e * THREADS + (t ^ other)] : __shfl_xor_sync(~0u, k[e], other);
                k[e] = (theirs < k[e]) == least ? theirs : k[e];
            }
        }
        UNROLL for (uint distance = V / 2; distance > 0; distance /= 2)
            if (distance < run) {
                UNROLL for (uint e = 0; e < V; ++e)
                    if ((e & distance) == 0) {
                        const bool rises = ((t * V + e) & run) == 0;
                        const Key a = k[e], b = k[e + distance];
                        const bool turned = (b < a) == rises;
                        k[e] = turned ? b : a;
                        k[e + distance] = turned ? a : b;
                    }
            }
    }
    UNROLL for (uint e = 0; e < V; ++e)
        if (t * V + e < n) y[t * V + e] = (uint)k[e];
}

// Indices that sort the rows of x, of up to `size` elements each. Grid: rows.
#define SORT(size) \
KERNEL(sort_##size, size / V, IN(0, void, x), OUT(1, uint, y), COUNT(2, rows), VAL(6, uint, n), VAL(7, uint, format), VAL(8, uint, descending)) \
{ \
    SHARED(Key, exchange, [size]); \
    DEPENDENCY_WAIT(); \
    DEPENDENCY_LAUNCH(); \
    if (GROUP.x >= COUNTED(rows)) return; \
    const size_t first = size_t(GROUP.x) * n; \
    const uint bytes = format == F16 || format == BF16 ? 2 : 4; \
    sort_row<size / V>((const uchar *)x + first * bytes, y + first, n, format, descending != 0, exchange); \
}
SORT(256)
SORT(512)
SORT(1024)
SORT(2048)
SORT(4096)
