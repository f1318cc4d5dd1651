#include "dialect.h"
#include "stream.h"
#include "route.h"
// A mixture's router for few tokens in one launch: the norm of a token, its products with the experts' rows, the choice, and the conversion of what the
// experts multiply. A warp has an expert, whose row is in registers before the launch waits; each computes the norm itself. The last workgroup of a token
// to finish chooses.
#define THREADS 128
#define WARPS (THREADS / 32)
// Fours of a row that a lane has at a time: rows of 2,048 elements are held whole.
#define HELD 16
// How the experts take the token: unchanged, as bf16, in 8 bits in groups of 32.
#define NONE 0
#define TO_BF16 1
#define TO_CODES 2
HOST(THREADS, MOST_CHOSEN, NONE, TO_BF16, TO_CODES)

// The code of x, as `rows.h` has it.
FN uint code(float x) { return as_uint(clamp(x, -128.0f, 127.0f) + 12582912.0f) & 255u; }

// x f32 [tokens, k], norm f32 [k], w f32 [n, k], bias f32 [n] where `biased`. normed: the norm's result, where `stored`; converted, x_scales: what the
// conversion gives. ids, weights [tokens, chosen]. logits f32 [tokens, n] is scratch; counters u32 [tokens] are zero before and after.
// Grid: experts / 4, tokens. k is a multiple of 32.
#define ROUTER(name, V) KERNEL(name, THREADS, IN(0, float, x), IN(1, float, norm), IN(2, float, w), IN(3, float, bias), OUT(4, float, normed), OUT(5, uchar, converted), \
    OUT(6, float, x_scales), OUT(7, uint, ids), OUT(8, float, weights), OUT(9, float, logits), OUT(10, uint, counters), COUNT(11, tokens), VAL(15, uint, k), VAL(16, uint, n), \
    VAL(17, uint, chosen), VAL(18, uint, form), VAL(19, uint, biased), VAL(20, uint, stored), VAL(21, uint, conversion), VAL(22, float, eps), VAL(23, float, least)) \
{ \
    __shared__ uint flag; \
    const uint warp = threadIdx.x >> 5, lane = threadIdx.x & 31, expert = blockIdx.x * WARPS + warp, token = blockIdx.y, fours = k / 4; \
    const float *const own = w + (ulong)min(expert, n - 1) * k; \
    float4 row[HELD], gain[HELD], v[HELD]; \
    UNROLL for (uint i = 0; i < HELD; ++i) row[i] = constant4(own + min(i * 32 + lane, fours - 1) * 4); \
    UNROLL for (uint i = 0; i < HELD; ++i) gain[i] = constant4(norm + min(i * 32 + lane, fours - 1) * 4); \
    const float more = biased && expert < n ? bias[expert] : 0.0f; \
    DEPENDENCY_WAIT(); \
    DEPENDENCY_LAUNCH(); \
    if (token >= COUNTED(tokens)) return; \
    const float4 *const from = (const float4 *)(x + (ulong)token * k); \
    float squares = 0, sum = 0; \
    UNROLL for (uint i = 0; i < HELD; ++i) v[i] = fresh(from + min(i * 32 + lane, fours - 1)); \
    UNROLL for (uint i = 0; i < HELD; ++i) if (i * 32 + lane < fours) { \
        squares += dot(v[i], v[i]); \
        sum += dot(v[i] * gain[i], row[i]); \
    } \
    ROLLED for (uint begin = HELD * 32; begin < fours; begin += 128) { \
        float4 a[4], b[4], c[4]; \
        UNROLL for (uint i = 0; i < 4; ++i) { \
            const uint at = min(begin + i * 32 + lane, fours - 1); \
            a[i] = fresh(from + at); \
            b[i] = constant4(norm + at * 4); \
            c[i] = constant4(own + at * 4); \
        } \
        UNROLL for (uint i = 0; i < 4; ++i) if (begin + i * 32 + lane < fours) { \
            squares += dot(a[i], a[i]); \
            sum += dot(a[i] * b[i], c[i]); \
        } \
    } \
    squares = simd_sum(squares); \
    sum = simd_sum(sum); \
    const float scale = 1.0f / sqrtf(squares / float(k) + eps); \
    if (lane == 0 && expert < n) logits[(ulong)token * n + expert] = fmaf(sum, scale, more); \
    /* Each 128 elements are converted by one warp of all. */ \
    for (uint four = expert; four < (fours + 31) / 32; four += gridDim.x * WARPS) { \
        const uint at = four * 32 + lane; \
        const bool inside = at < fours; \
        const float4 u = fresh(from + min(at, fours - 1)) * scale * constant4(norm + min(at, fours - 1) * 4); \
        if (stored && inside) store4(normed + (ulong)token * k + at * 4, u); \
        if (conversion == TO_BF16 && inside) store4((bfloat *)converted + (ulong)token * k + at * 4, u); \
        if (conversion == TO_CODES) { \
            float greatest = inside ? wider(widest4(u), least) : 0.0f; \
            UNROLL for (uint m = 1; m < 8; m *= 2) greatest = wider(greatest, simd_shuffle_xor(greatest, m)); \
            const float inverse = greatest == 0.0f ? 0.0f : 127.0f / greatest; \
            if (inside) { \
                *(uint *)(converted + (ulong)token * k + at * 4) = code(u.x * inverse) | code(u.y * inverse) << 8 | code(u.z * inverse) << 16 | code(u.w * inverse) << 24; \
                if (lane % 8 == 0) x_scales[((ulong)token * k + at * 4) / 32] = greatest / 127.0f; \
            } \
        } \
    } \
    if (!arrives_last(counters + token, gridDim.x, &flag, threadIdx.x) || warp > 0) return; \
    float r[V], value; \
    uint of_lane; \
    UNROLL for (uint i = 0; i < V; ++i) r[i] = i * 32 + lane < n ? fresh(logits + (ulong)token * n + i * 32 + lane) : -INFINITY; \
    choose<V>(r, n, chosen, form, lane, of_lane, value); \
    if (lane >= chosen) return; \
    ids[token * chosen + lane] = of_lane; \
    weights[token * chosen + lane] = value; \
}
ROUTER(router_4, 4)
ROUTER(router_8, 8)
ROUTER(router_32, 32)
