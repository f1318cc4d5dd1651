// Products of up to 32 tokens with packed weights on tensor cores, which read the weights once, as they are stored: see gemm.h.
//
// A workgroup of 8 warps computes a group of 64 rows over a part of the row length; a cluster shares a group where groups are few. A warp has 32
// rows and every fourth block of 128 elements. A lane holds a whole chunk of 32 elements of each of its rows, four neighbours a block, so that its
// scales are computed once: the order of the elements in a product is the one in which lanes hold them, for activations as for weights. Those of
// the next block are on their way to registers while a block is multiplied. Activations lie in shared memory in that same order.
#include "stored.h"

enum : uint { PARTS = 4, BLOCK = 128, STRIDE = 68 }; // Warps that share the rows; elements of a block; floats of a token's sums.
HOST(PARTS, BLOCK, STRIDE)

#if __CUDA_ARCH__ >= 900
constexpr bool CLUSTERS = true;
#else
constexpr bool CLUSTERS = false;
#endif

struct Operands {
    const uchar *low[3], *high[3], *records[3];
    const uchar *x;
    uint k;

    template <class T> static T of(const T (&all)[3], uint matrix) { return matrix == 0 ? all[0] : matrix == 1 ? all[1] : all[2]; }
};

// MOST: blocks of activations in shared memory at a time.
template <uint W, uint N, uint MOST>
FN void multiply(const Operands &in, const Matrices &w, const float *add, void *y0, void *y1, void *y2, bool narrow, const uint *step, uint slot, uint most, uint splits)
{
    constexpr uint TILES = N / 8;
    extern __shared__ __align__(128) uchar shared[];
    const uint base = shared_address(shared), tid = threadIdx.x, lane = tid & 31, half = tid >> 5 & 1, part = tid >> 6;
    const uint rank = CLUSTERS && splits > 1 ? cluster_rank() : 0, token = blockIdx.y * N;
    const Group group = locate(w, blockIdx.x / splits);
    const bool gated = w.gated();

    // The blocks of this workgroup, and this lane's chunks: the first is that of its first row in the warp's first block.
    const uint chunks = in.k / 32, blocks = (chunks + 3) / 4, share = (blocks + splits - 1) / splits;
    const uint begin = min(rank * share, blocks), end = min(begin + share, blocks);
    const uint matrix = gated ? half : group.matrix, row = group.row + (gated ? 0 : half * 32) + (lane >> 2);
    const uchar *const low = Operands::of(in.low, matrix), *const high = Operands::of(in.high, matrix), *const records = Operands::of(in.records, matrix);
    const ulong policy = stream_policy();
    const auto load = [&](Stored<W> (&to)[4], uint block) {
        const uint chunk = block * 4 + (lane & 3);
        #pragma unroll
        for (uint i = 0; i < 4; ++i) {
            to[i] = {};
            if (block < end && chunk < chunks && row + i * 8 < group.m) to[i].load(low, high, records, (row + i * 8) * chunks + chunk, policy);
        }
    };

    Stored<W> now[4];
    load(now, begin + part);
    dependency_wait();
    const uint n = tokens(step, slot, most);

    float sum[2][TILES][4];
    #pragma unroll
    for (uint i = 0; i < 2; ++i)
        #pragma unroll
        for (uint j = 0; j < TILES; ++j)
            #pragma unroll
            for (uint e = 0; e < 4; ++e) sum[i][j][e] = 0;

    for (uint from = begin; from < end; from += MOST) {
        const uint to = min(from + MOST, end), pieces = (to - from) * 16; // Pieces of 8 elements of a token.
        __syncthreads();
        for (uint i = tid; i < N * pieces; i += 256) {
            const uint t = i / pieces, p = i % pieces, eight = p & 3, place = ((t & 7) * 4 + (p >> 2 & 3)) ^ eight * 2;
            const bool inside = token + t < n && (from * 4 + (p >> 2)) < chunks;
            copy16(base + ((((p >> 4) * TILES + (t >> 3)) * 4 + eight) * 32 + place) * 16,
                   in.x + (inside ? ((size_t)(token + t) * in.k + from * BLOCK + p * 8) * 2 : 0), inside);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        #pragma unroll 1
        for (uint block = from + part; block < to; block += PARTS) {
            Stored<W> next[4];
            load(next, block + PARTS);
            const uint x = base + (block - from) * TILES * 2048;
            multiply_block<W, 2>(sum, now, x, lane, N);
            #pragma unroll
            for (uint i = 0; i < 4; ++i) now[i] = next[i];
        }
    }
    dependency_launch();

    // Every warp's sums to shared memory, where the activations were; then each workgroup of the cluster adds up its share of the tokens.
    __syncthreads();
    #pragma unroll
    for (uint i = 0; i < 2; ++i)
        #pragma unroll
        for (uint j = 0; j < TILES; ++j)
            #pragma unroll
            for (uint e = 0; e < 4; ++e) {
                const uint t = j * 8 + (lane & 3) * 2 + (e & 1), r = half * 32 + i * 16 + (e >> 1) * 8 + (lane >> 2);
                ((float *)shared)[(part * N + t) * STRIDE + r] = sum[i][j][e];
            }
    if (CLUSTERS && splits > 1) {
        if constexpr (CLUSTERS) cluster_sync();
    } else
        __syncthreads();
    const uint own = N / splits, each = (own + 1) / 2, first = rank * own + (tid >> 7) * each;
    const auto total = [&](uint t, uint r) {
        float4 v = make_float4(0, 0, 0, 0);
        for (uint from = 0; from < splits; ++from)
            #pragma unroll
            for (uint p = 0; p < PARTS; ++p) {
                const uint at = base + ((p * N + first + t) * STRIDE + r) * 4;
                float4 u;
                if constexpr (CLUSTERS) u = splits > 1 ? load_cluster(at, from) : load_shared(at);
                else u = load_shared(at);
                v = make_float4(v.x + u.x, v.y + u.y, v.z + u.z, v.w + u.w);
            }
        return v;
    };
    write_group(w, group, token + first, own == 1 && tid >= 128 ? 0 : each, n, add, group.matrix == 0 ? y0 : group.matrix == 1 ? y1 : y2, narrow, tid & 127,
                [&](uint t, uint r) {
                    const float4 v = total(t, r);
                    if (!gated) return v;
                    const float4 u = total(t, r + 32);
                    if (w.mode == SWIGLU) return make_float4(swiglu(v.x, u.x), swiglu(v.y, u.y), swiglu(v.z, u.z), swiglu(v.w, u.w));
                    return make_float4(relu2(v.x, u.x), relu2(v.y, u.y), relu2(v.z, u.z), relu2(v.w, u.w));
                });
    if constexpr (CLUSTERS) if (splits > 1) cluster_sync();
}

// On compute capability 9.0 types whose records are of several chunks, so that rows are whole stages there, are gemm_wide.cu's: these kernels are empty.
// Grid: splits · groups of 64 rows in clusters of `splits` (1 before compute capability 9.0), tokens / N. step: the step block or null; n: tokens at most.
#define FEW(name, W, N, MOST, PER_SM)                                                                                                          \
    KERNEL_SHARED(name##_##N, 256, PER_SM, IN(0, uchar, x), EARLY(1, uchar, w0), EARLY(2, uchar, h0), EARLY(3, uchar, s0), EARLY(4, uchar, w1), EARLY(5, uchar, h1), \
        EARLY(6, uchar, s1), EARLY(7, uchar, w2), EARLY(8, uchar, h2), EARLY(9, uchar, s2), IN(10, float, add), OUT(11, void, y0), OUT(12, void, y1),       \
        OUT(13, void, y2), IN(14, uint, step), VAL(15, uint, slot), VAL(16, uint, n), VAL(17, uint, m0), VAL(18, uint, m1), VAL(19, uint, m2),  \
        VAL(20, uint, k), VAL(21, uint, mode), VAL(22, uint, narrow), VAL(23, uint, splits))                                                   \
    {                                                                                                                                          \
        if constexpr (!CLUSTERS || planes::record_chunks<planes::W>() == 1) {                                                                  \
            const Operands in = {{w0, w1, w2}, {h0, h1, h2}, {s0, s1, s2}, x, k};                                                              \
            multiply<planes::W, N, MOST>(in, Matrices{m0, m1, m2, (Mode)mode}, add, y0, y1, y2, narrow, step, slot, n, splits);                \
        }                                                                                                                                      \
    }
#define FEW_OF(name, W, ...) FEW(few_##name, W, 8, 48, (planes::W == planes::IQ2_N ? 1 : 2)) FEW(few_##name, W, 32, 16, 1)
PACKED_TYPES(FEW_OF)
