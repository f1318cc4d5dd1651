// Products of tensors (batch.h) without matrix instructions: f32, i32 and i64; and f64 with those of its type. Any sizes and sides.
#include "batch.h"

// How sides lie, in bits: a along k, b along k.
#define A_ALONG 1u
#define B_ALONG 2u

// One operand of a workgroup.
template <class T> struct Side {
    const T *x; // Its matrix.
    uint pitch, lines, line, k;
    bool along;

    __forceinline__ size_t at(uint l, uint d) const { return along ? (size_t)l * pitch + d : (size_t)d * pitch + l; }
};

// What a workgroup of tiles of `rows` × `columns` computes; nothing if `there` is false.
template <class T> struct Job {
    Side<T> left, right;
    uint row, column, first, end; // Of the result; elements of k.
    size_t start;                 // Of the matrix in the result.
    bool there;
};
template <class T>
FN Job<T> job(const void *a, uint a_pitch, uint a_size, const void *b, uint b_pitch, uint b_size, uint sides, const Sizes &size, uint rows, uint columns, uint deep)
{
    Job<T> j = {};
    const uint down = (size.n + rows - 1) / rows, across = (size.m + columns - 1) / columns, split = blockIdx.y;
    if (down * across == 0 || blockIdx.x / (down * across) >= size.batches) return j;
    const uint batch = blockIdx.x / (down * across);
    const Tile tile = tile_of(blockIdx.x % (down * across), down, across);
    j.there = true;
    j.row = tile.row * rows;
    j.column = tile.column * columns;
    const uint share = ((size.k + deep - 1) / deep + size.splits - 1) / size.splits * deep;
    j.first = min(split * share, size.k);
    j.end = j.first + min(share, size.k - j.first);
    j.left = {(const T *)a + (size_t)size.matrix(size.a, batch) * a_size, a_pitch, size.n, j.row, j.end, (sides & A_ALONG) != 0};
    j.right = {(const T *)b + (size_t)size.matrix(size.b, batch) * b_size, b_pitch, size.m, j.column, j.end, (sides & B_ALONG) != 0};
    j.start = ((size_t)split * size.batches + batch) * size.n * size.m;
    return j;
}

#define ARGUMENTS_OF_PLAIN(i) IN(i, void, a), IN(i + 1, void, b), IN(i + 2, void, bias), IN(i + 3, void, residual), OUT(i + 4, void, y), BATCH_SIZES(i + 5), \
    VAL(i + 25, uint, a_pitch), VAL(i + 26, uint, a_size), VAL(i + 27, uint, b_pitch), VAL(i + 28, uint, b_size), VAL(i + 29, uint, sides)

// What is done with a thread's `count` sums after it has stored them, so that there is one text of it. `place`: row and column of a sum.
template <class T, class Place>
FN void finish_stored(T *y, uint finish, const T *bias, const T *residual, const Sizes &size, size_t start, uint count, Place place)
{
    if (!finish) return;
    #pragma unroll 1
    for (uint i = 0; i < count; ++i) {
        const uint2 at = place(i);
        if (at.x >= size.n || at.y >= size.m) continue;
        T &v = y[start + (size_t)at.x * size.m + at.y];
        v = finished(v, finish, bias, residual, at.y, start + (size_t)at.x * size.m + at.y);
    }
}

enum { F32_DEEP = 8 };
// A thread's way along an operand of LINES lines, 4 elements of each stage: of a side along k elements 4 · (thread % 2) on of line thread / 2; else 4 lines of a
// k row. Elements that are not there are zero. WHOLE: there are all four or none, at an address for 16 bytes.
template <bool WHOLE, uint LINES> struct Walk {
    const float *p;
    size_t step;
    int left;  // Elements of k from here on; none for a line that is not there.
    uint most; // Of the four.
    bool along;

    __forceinline__ Walk(const Side<float> &side, uint first, uint thread)
    {
        const uint l = side.line + (side.along ? thread / 2 : thread % (LINES / 4) * 4), d = first + (side.along ? thread % 2 * 4 : thread / (LINES / 4));
        along = side.along;
        left = l < side.lines ? int(side.k) - int(d) : 0;
        most = along ? 4 : side.lines - min(l, side.lines);
        p = side.x + (left > 0 ? side.at(l, d) : 0);
        step = along ? F32_DEEP : (size_t)F32_DEEP * side.pitch;
    }
    __forceinline__ float4 load() const
    {
        if (left <= 0) return make_float4(0, 0, 0, 0);
        if (WHOLE) return *(const float4 *)p;
        const uint there = along ? (uint)left : most;
        return make_float4(p[0], there > 1 ? p[1] : 0.0f, there > 2 ? p[2] : 0.0f, there > 3 ? p[3] : 0.0f);
    }
    // Of the lines that are `apart` elements further, if they are there.
    __forceinline__ float4 load_apart(size_t apart, bool there) const { return there && left > 0 ? *(const float4 *)(p + apart) : make_float4(0, 0, 0, 0); }
    __forceinline__ void advance()
    {
        p += step;
        left -= F32_DEEP;
    }
    // A stage is stored as k rows of all lines, and four more.
    __forceinline__ void store(float *to, uint pitch, float4 v, uint thread) const
    {
        if (along) {
            float *const at = to + thread % 2 * 4 * pitch + thread / 2;
            at[0] = v.x;
            at[pitch] = v.y;
            at[2 * pitch] = v.z;
            at[3 * pitch] = v.w;
        } else
            *(float4 *)(to + thread / (LINES / 4) * pitch + thread % (LINES / 4) * 4) = v;
    }
};
// f32: a workgroup computes ROWS × COLUMNS in stages of 8 elements of k. A thread has 8 × 8: four rows and four more 16 further, four columns and four more 32
// further; a warp 32 × 64. Of 64 × 64, a thread has 4 × 4 and a warp 16 × 32.
template <bool WHOLE, uint ROWS, uint COLUMNS>
FN void multiply_floats(const Job<float> &j, const Sizes &size, const float *bias, const float *residual, float *out, uint finish)
{
    constexpr uint HALVES = ROWS == 64 ? 1 : 2, OWN = 4 * HALVES, ACROSS = COLUMNS / (32 * HALVES), L_PITCH = ROWS + 4, R_PITCH = COLUMNS + 4;
    // Of 256 lines a thread loads two pieces of a stage, of 64 half of the threads one: of both sides the two halves.
    constexpr bool TWICE = ROWS == 256;
    static_assert(!TWICE || WHOLE, "");
    __shared__ __align__(16) float lefts[2][F32_DEEP * L_PITCH], rights[2][F32_DEEP * R_PITCH];
    const uint thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const uint own_row = warp / ACROSS * 16 * HALVES + lane / 8 * 4, own_column = warp % ACROSS * 32 * HALVES + lane % 8 * 4;
    float sum[OWN][OWN];
    #pragma unroll
    for (uint i = 0; i < OWN; ++i)
        #pragma unroll
        for (uint c = 0; c < OWN; ++c) sum[i][c] = 0;
    const bool takes_left = ROWS > 64 || thread < 128, takes_right = COLUMNS > 64 || (ROWS == 64 ? thread >= 128 : thread < 128);
    constexpr uint L_LINES = ROWS == 64 ? 64 : 128;
    Walk<WHOLE, L_LINES> left(j.left, j.first, thread % (L_LINES * 2));
    Walk<WHOLE, COLUMNS> right(j.right, j.first, thread % (COLUMNS * 2));
    const size_t apart = j.left.along ? (size_t)128 * j.left.pitch : 128;
    const bool further = j.row + 128 + (j.left.along ? thread / 2 : thread % 32 * 4) < size.n;
    float4 l = make_float4(0, 0, 0, 0), l2 = l, r = l;
    auto fetch = [&] {
        if (takes_left) l = left.load();
        if (TWICE) l2 = left.load_apart(apart, further);
        if (takes_right) r = right.load();
        left.advance();
        right.advance();
    };
    fetch();
    uint buffer = 0;
    #pragma unroll 1
    for (uint depth = j.first; depth < j.end; depth += F32_DEEP, buffer ^= 1) {
        if (takes_left) left.store(lefts[buffer], L_PITCH, l, thread % (L_LINES * 2));
        if (TWICE) left.store(lefts[buffer] + 128, L_PITCH, l2, thread % (L_LINES * 2));
        if (takes_right) right.store(rights[buffer], R_PITCH, r, thread % (COLUMNS * 2));
        __syncthreads();
        if (depth + F32_DEEP < j.end) fetch();
        const float *const ls = lefts[buffer] + own_row, *const rs = rights[buffer] + own_column;
        #pragma unroll
        for (uint e = 0; e < F32_DEEP; ++e) {
            float x[OWN], w[OWN];
            #pragma unroll
            for (uint h = 0; h < HALVES; ++h) {
                *(float4 *)(x + h * 4) = *(const float4 *)(ls + e * L_PITCH + h * 16);
                *(float4 *)(w + h * 4) = *(const float4 *)(rs + e * R_PITCH + h * 32);
            }
            #pragma unroll
            for (uint i = 0; i < OWN; ++i)
                #pragma unroll
                for (uint c = 0; c < OWN; ++c) sum[i][c] = fmaf(x[i], w[c], sum[i][c]);
        }
    }
    dependency_launch();
    #pragma unroll
    for (uint i = 0; i < OWN; ++i) {
        const uint row = j.row + own_row + i % 4 + i / 4 * 16;
        if (row >= size.n) continue;
        #pragma unroll
        for (uint h = 0; h < HALVES; ++h) {
            const uint column = j.column + own_column + h * 32;
            const size_t at = j.start + (size_t)row * size.m + column;
            if (size.m % 4 == 0) {
                if (column < size.m) *(float4 *)(out + at) = make_float4(sum[i][h * 4], sum[i][h * 4 + 1], sum[i][h * 4 + 2], sum[i][h * 4 + 3]);
            } else
                #pragma unroll
                for (uint c = 0; c < 4; ++c) if (column + c < size.m) out[at + c] = sum[i][h * 4 + c];
        }
    }
    if (finish & SUMS) return;
    finish_stored(out, finish, bias, residual, size, j.start, OWN * OWN, [&](uint i) {
        return make_uint2(j.row + own_row + i / OWN % 4 + i / OWN / 4 * 16, j.column + own_column + i % 4 + i % OWN / 4 * 32);
    });
}
#define PLAIN(name, FORM, WHOLE, ROWS, COLUMNS)                                                                                            \
    FORM(name, 256, ARGUMENTS_OF_PLAIN(0))                                                                                                 \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        const Sizes size = SIZES();                                                                                                        \
        const Job<float> j = job<float>(a, a_pitch, a_size, b, b_pitch, b_size, sides, size, ROWS, COLUMNS, F32_DEEP);                     \
        if (j.there) multiply_floats<WHOLE, ROWS, COLUMNS>(j, size, (const float *)bias, (const float *)residual, (float *)y, finish);     \
    }
PLAIN(batch_f32_256x64, KERNEL_ALONE, true, 256, 64)
PLAIN(batch_f32_128x128, KERNEL_IN_PAIRS, true, 128, 128)
PLAIN(batch_f32_64x64, KERNEL_IN_PAIRS, true, 64, 64)
PLAIN(batch_f32_any_128x128, KERNEL_ALONE, false, 128, 128)
PLAIN(batch_f32_any_64x64, KERNEL_IN_PAIRS, false, 64, 64)

// f64: a workgroup computes 128 rows × COLUMNS (128 or 64) in stages of 16 elements of k, three at a time; a warp COLUMNS / 2 × 32. A side along k is stored as
// lines of 20 elements, another as k rows of its lines and four more: no two lanes of a load share a bank.
#define F64_DEEP 16
#define F64_STAGES 3
#define F64_LINE (F64_DEEP + 4)
HOST(A_ALONG, B_ALONG, F64_STAGES, F64_LINE)
// A thread's way along an operand: pairs of elements, of a side along k of lines thread / 8 and each 32 further, else of k rows of as many threads as there are
// pairs of lines. PAIRS: pairs lie at multiples of 16 bytes.
template <uint LINES, bool PAIRS> struct Way {
    const double *p, *start; // Where it is, and an address that there is.
    size_t apart, step;
    uint to, line, depth, lines, k;
    bool along;

    __forceinline__ Way(const Side<double> &side, uint first, uint thread)
    {
        constexpr uint ROW = LINES / 2;
        along = side.along;
        lines = side.lines;
        k = side.k;
        line = side.line + (along ? thread / 8 : thread % ROW * 2);
        depth = first + (along ? thread % 8 * 2 : thread / ROW);
        start = side.x;
        p = side.x + side.at(line, depth);
        apart = (size_t)(along ? 32 : 256 / ROW) * side.pitch;
        step = along ? F64_DEEP : (size_t)F64_DEEP * side.pitch;
        to = along ? thread / 8 * F64_LINE + thread % 8 * 2 : thread / ROW * (LINES + 4) + thread % ROW * 2;
    }
    __forceinline__ void fetch(uint stage)
    {
        constexpr uint ROW = LINES / 2;
        #pragma unroll
        for (uint i = 0; i < LINES / 32; ++i) {
            const uint l = line + (along ? i * 32 : 0), d = depth + (along ? 0 : i * (256 / ROW));
            const uint there = l < lines && d < k ? min(2u, along ? k - d : lines - l) : 0, at = stage + (to + i * (along ? 32 * F64_LINE : 256 / ROW * (LINES + 4))) * 8;
            const double *const from = there ? p + i * apart : start;
            if (PAIRS) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there * 8) : "memory");
            else {
                asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(from), "r"(there > 0 ? 8 : 0) : "memory");
                asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at + 8), "l"(there > 1 ? from + 1 : from), "r"(there > 1 ? 8 : 0) : "memory");
            }
        }
        p += step;
        depth += F64_DEEP;
    }
};
// d (16 × 8) += a (16 × 16) · b (16 × 8)
FN void mma(double (&d)[4], const double (&a)[8], const double (&b)[4])
{
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#else
    #pragma unroll
    for (uint i = 0; i < 8; ++i)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+d"(d[i % 2 * 2]), "+d"(d[i % 2 * 2 + 1]) : "d"(a[i]), "d"(b[i / 2]));
#endif
}
// SIDES: the bits of how sides lie where a kernel is for them; ~0 where `sides` has them.
template <uint COLUMNS, bool PAIRS, uint SIDES> FN void multiply_doubles(const Job<double> &j, const Sizes &size, const double *bias, const double *residual, double *out, uint finish, uint sides)
{
    constexpr uint TILES = COLUMNS / 32, STAGE = (128 + COLUMNS) * F64_LINE;
    extern __shared__ __align__(16) double stages[];
    const uint thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const uint own_row = COLUMNS == 128 ? warp / 4 * 64 : warp / 2 * 32, own_column = COLUMNS == 128 ? warp % 4 * 32 : warp % 2 * 32;
    const uint base = shared_address(stages), steps = (j.end - j.first + F64_DEEP - 1) / F64_DEEP;
    Way<128, PAIRS> left(j.left, j.first, thread);
    Way<COLUMNS, PAIRS> right(j.right, j.first, thread);
    auto fill = [&](uint step) {
        const uint stage = base + step % F64_STAGES * STAGE * 8;
        if (step < steps) {
            left.fetch(stage);
            right.fetch(stage + 128 * F64_LINE * 8);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    double sum[TILES][4][4];
    #pragma unroll
    for (uint i = 0; i < TILES; ++i)
        #pragma unroll
        for (uint c = 0; c < 4; ++c)
            #pragma unroll
            for (uint e = 0; e < 4; ++e) sum[i][c][e] = 0;
    for (uint s = 0; s < F64_STAGES - 1; ++s) fill(s);
    // Distances of lines and of elements of k in a stage.
    const bool a_along = (SIDES == ~0u ? sides : SIDES) & A_ALONG, b_along = (SIDES == ~0u ? sides : SIDES) & B_ALONG;
    const uint l_line = a_along ? F64_LINE : 1, l_deep = a_along ? 1 : 132, r_line = b_along ? F64_LINE : 1, r_deep = b_along ? 1 : COLUMNS + 4;
    #pragma unroll 1
    for (uint step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(F64_STAGES - 2) : "memory");
        __syncthreads();
        fill(step + F64_STAGES - 1);
        const double *const ls = stages + step % F64_STAGES * STAGE + (own_row + g) * l_line + t * l_deep;
        const double *const rs = stages + step % F64_STAGES * STAGE + 128 * F64_LINE + (own_column + g) * r_line + t * r_deep;
        double r[4][4];
        #pragma unroll
        for (uint c = 0; c < 4; ++c)
            #pragma unroll
            for (uint e = 0; e < 4; ++e) r[c][e] = rs[c * 8 * r_line + e * 4 * r_deep];
        #pragma unroll
        for (uint i = 0; i < TILES; ++i) {
            double l[8];
            #pragma unroll
            for (uint e = 0; e < 8; ++e) l[e] = ls[(i * 16 + e % 2 * 8) * l_line + e / 2 * 4 * l_deep];
            #pragma unroll
            for (uint c = 0; c < 4; ++c) mma(sum[i][c], l, r[c]);
        }
    }
    dependency_launch();
    #pragma unroll
    for (uint i = 0; i < TILES; ++i)
        #pragma unroll
        for (uint c = 0; c < 4; ++c)
            #pragma unroll
            for (uint e = 0; e < 4; ++e) {
                const uint row = j.row + own_row + i * 16 + e / 2 * 8 + g, column = j.column + own_column + c * 8 + t * 2 + e % 2;
                if (row < size.n && column < size.m) out[j.start + (size_t)row * size.m + column] = sum[i][c][e];
            }
    if (finish & SUMS) return;
    finish_stored(out, finish, bias, residual, size, j.start, TILES * 16, [&](uint i) {
        return make_uint2(j.row + own_row + i / 16 * 16 + i / 2 % 2 * 8 + g, j.column + own_column + i / 4 % 4 * 8 + t * 2 + i % 2);
    });
}
#define DOUBLES(name, COLUMNS, PAIRS, SIDES)                                                                                               \
    KERNEL_SHARED(name, 256, 1, ARGUMENTS_OF_PLAIN(0))                                                                                     \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        const Sizes size = SIZES();                                                                                                        \
        const Job<double> j = job<double>(a, a_pitch, a_size, b, b_pitch, b_size, SIDES == ~0u ? sides : SIDES, size, 128, COLUMNS, F64_DEEP); \
        if (j.there) multiply_doubles<COLUMNS, PAIRS, SIDES>(j, size, (const double *)bias, (const double *)residual, (double *)y, finish, sides); \
    }
#define SIDES_OF_DOUBLES(COLUMNS)                                                                                                          \
    DOUBLES(batch_f64_##COLUMNS##_nn, COLUMNS, true, A_ALONG)                                                                              \
    DOUBLES(batch_f64_##COLUMNS##_nt, COLUMNS, true, A_ALONG | B_ALONG)                                                                    \
    DOUBLES(batch_f64_##COLUMNS##_tn, COLUMNS, true, 0)                                                                                    \
    DOUBLES(batch_f64_##COLUMNS##_tt, COLUMNS, true, B_ALONG)
SIDES_OF_DOUBLES(128)
SIDES_OF_DOUBLES(64)
DOUBLES(batch_f64_any, 64, false, ~0u)

// Integers: a workgroup computes 64 rows × 64 columns in stages of 16 elements of k; a thread 4 × 4 of them, 16 apart.
template <class T> FN void multiply_integers(const Job<T> &j, const Sizes &size, const T *bias, const T *residual, T *y, uint finish)
{
    __shared__ T left[16][65], right[16][65];
    const uint thread = threadIdx.x, own_row = thread / 16, own_column = thread % 16;
    T sum[4][4];
    #pragma unroll
    for (uint i = 0; i < 4; ++i)
        #pragma unroll
        for (uint c = 0; c < 4; ++c) sum[i][c] = 0;
    #pragma unroll 1
    for (uint depth = j.first; depth < j.end; depth += 16) {
        #pragma unroll
        for (uint h = 0; h < 2; ++h) {
            const Side<T> &side = h ? j.right : j.left;
            #pragma unroll
            for (uint i = 0; i < 4; ++i) {
                const uint e = i * 256 + thread, l = side.along ? e / 16 : e % 64, d = side.along ? e % 16 : e / 64;
                const bool inside = side.line + l < side.lines && depth + d < side.k;
                (h ? right : left)[d][l] = inside ? side.x[side.at(side.line + l, depth + d)] : 0;
            }
        }
        __syncthreads();
        #pragma unroll
        for (uint e = 0; e < 16; ++e) {
            T x[4], w[4];
            #pragma unroll
            for (uint i = 0; i < 4; ++i) { x[i] = left[e][own_row + i * 16]; w[i] = right[e][own_column + i * 16]; }
            #pragma unroll
            for (uint i = 0; i < 4; ++i)
                #pragma unroll
                for (uint c = 0; c < 4; ++c) sum[i][c] += x[i] * w[c];
        }
        __syncthreads();
    }
    dependency_launch();
    #pragma unroll
    for (uint i = 0; i < 4; ++i)
        #pragma unroll
        for (uint c = 0; c < 4; ++c) {
            const uint row = j.row + own_row + i * 16, column = j.column + own_column + c * 16;
            if (row >= size.n || column >= size.m) continue;
            const size_t at = j.start + (size_t)row * size.m + column;
            y[at] = finish & SUMS ? sum[i][c] : finished(sum[i][c], finish, bias, residual, column, at);
        }
}
#define INTEGERS(name, T)                                                                                                                  \
    KERNEL(name, 256, ARGUMENTS_OF_PLAIN(0))                                                                                               \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        const Sizes size = SIZES();                                                                                                        \
        const Job<T> j = job<T>(a, a_pitch, a_size, b, b_pitch, b_size, sides, size, 64, 64, 16);                                          \
        if (j.there) multiply_integers<T>(j, size, (const T *)bias, (const T *)residual, (T *)y, finish);                                  \
    }
INTEGERS(batch_i32, int)
INTEGERS(batch_i64, long long)
