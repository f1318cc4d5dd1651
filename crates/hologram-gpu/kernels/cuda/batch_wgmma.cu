// only sm_90a
// Products of tensors (batch.h) with warpgroup matrix instructions and the bulk tensor copy engine: bf16 and f16 with sums in f32 and one side or
// none transposed, and i8 with sums in i32 and both sides along k.
//
// A workgroup computes tiles of GROUPS · 64 rows × N columns: one warpgroup for each group of rows, and one that fills a ring of stages in shared memory,
// 128 bytes of k each. Both operands lie there in panels of 8 KiB: of a side along k 64 lines of 128 bytes, of a side across 64 k rows of as many lines.
// Workgroups stay and go from tile to tile.
#include "batch.h"
#include "wgmma.h"
#include "copy_engine.h"

#define RESERVED 1024
#define MOST_SHARED (228 * 1024 - RESERVED)
HOST(RESERVED, MOST_SHARED)
enum { PANEL = 8192, OF_PAIR = (MOST_SHARED + RESERVED) / 2 - RESERVED, BESIDE = 1024 + 256 };

// Shared memory: stages, two panels of results for each warpgroup, barriers. Small tiles share a multiprocessor; each workgroup leaves RESERVED bytes to
// the device.
template <int GROUPS, int N> struct Layout {
    static constexpr int PER_SM = GROUPS == 1 ? 2 : 1, STAGE = (GROUPS + N / 64) * PANEL, RESULTS = GROUPS * 2 * PANEL;
    static constexpr int FIT = ((GROUPS == 1 ? OF_PAIR : MOST_SHARED) - BESIDE - RESULTS) / STAGE, STAGES = FIT > 8 ? 8 : FIT;
};

// Descriptor of a side across: panels of 64 lines apart, eight k rows 1,024 bytes apart.
FN ulong describe_across(uint address) { return (ulong)(address >> 4 & 0x3fff) | (ulong)(PANEL >> 4) << 16 | 64ull << 32 | 1ull << 62; }

// Copies of panels to shared memory, and back: the calling thread may wait until at most LEFT of its copies back still read shared memory.
FN void copy_panel(uint to, const TensorMap *map, uint x, uint y, uint z, uint barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}
FN void store_panel(const TensorMap *map, uint from, uint x, uint y, uint z)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(x), "r"(y), "r"(z), "r"(from) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int LEFT> FN void stored_wait() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory"); }
// Before the copy engine reads what this thread wrote to shared memory.
FN void engine_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define TEXT192 D0 "," D1 "," D2 "," D3 "," D4 "," D5
#define REGS192(c) R16(c, 0), R16(c, 16), R16(c, 32), R16(c, 48), R16(c, 64), R16(c, 80)
// The types of elements.
struct Bfloats {};
struct Halves {};
struct Bytes {};
// Adds the products of 32 bytes of k: a · b, both described. `more`: whether there are sums already.
#define PRODUCT(E, N, K, types, Sum, c, A, B, MORE, turns, ...)                                                                            \
    template <int TA, int TB> FN void product(E, Sum (&d)[N / 2], ulong a, ulong b, int more)                                              \
    {                                                                                                                                      \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" MORE ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k" K "." types                    \
                     " {" TEXT##N "}, %" A ", %" B ", p" turns ";}" : REGS##N(c) : "l"(a), "l"(b), "r"(more) __VA_ARGS__);                 \
    }
#define TURNS , "n"(TA), "n"(TB)
#define PRODUCTS(N, A, B, MORE, turns)                                                                                                     \
    PRODUCT(Bfloats, N, "16", "f32.bf16.bf16", float, FLOAT, A, B, MORE, ", 1, 1, " turns, TURNS)                                             \
    PRODUCT(Halves, N, "16", "f32.f16.f16", float, FLOAT, A, B, MORE, ", 1, 1, " turns, TURNS)                                                \
    PRODUCT(Bytes, N, "32", "s32.s8.s8", int, INT, A, B, MORE, "", )
PRODUCTS(64, "32", "33", "34", "%35, %36")
PRODUCTS(128, "64", "65", "66", "%67, %68")
PRODUCTS(192, "96", "97", "98", "%99, %100")
PRODUCTS(256, "128", "129", "130", "%131, %132")

FN void group_sync(uint id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }
FN uint bits(float v) { return __float_as_uint(v); }
FN uint bits(int v) { return v; }
FN uint pack(float low, float high, __nv_bfloat16) { return pack_bf16(low, high); }
FN uint pack(float low, float high, half)
{
    uint r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// A warp's 16 rows of a panel of results, as the copy engine's swizzle of 128 bytes has them.
template <class T> FN void put_panel(uint to, uint warp, uint lane, const float (&sum)[32], T)
{
    #pragma unroll
    for (uint j = 0; j < 4; ++j) {
        // Matrix lane / 8: the two halves of 16 rows, then the next 8 columns.
        const uint at = to + swizzle<128>(warp * 16 + (lane & 15), j * 2 + (lane >> 4));
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(at), "r"(pack(sum[j * 8], sum[j * 8 + 1], T())), "r"(pack(sum[j * 8 + 2], sum[j * 8 + 3], T())),
                     "r"(pack(sum[j * 8 + 4], sum[j * 8 + 5], T())), "r"(pack(sum[j * 8 + 6], sum[j * 8 + 7], T())) : "memory");
    }
}
FN void put_panel(uint to, uint warp, uint lane, const int (&sum)[16], int)
{
    #pragma unroll
    for (uint i = 0; i < 16; i += 2) {
        const uint at = to + swizzle<128>(warp * 16 + (lane >> 2) + (i >> 1 & 1) * 8, (i >> 2) * 2 + (lane >> 1 & 1)) + (lane & 1) * 8;
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(sum[i]), "r"(sum[i + 1]) : "memory");
    }
}

template <class E, class T, class Sum, bool TA, bool TB, int GROUPS, int N>
FN void multiply(const TensorMap &a, const TensorMap &b, const TensorMap &out, const T *bias, const T *residual, void *y, const Sizes &size, uint finish)
{
    using L = Layout<GROUPS, N>;
    constexpr uint DEEP = sizeof(T) == 2 ? 64 : 128;
    extern __shared__ uchar shared[];
    const uint base = (shared_address(shared) + 1023) & ~1023u;
    const uint results = base + L::STAGES * L::STAGE, full = results + L::RESULTS, empty = full + L::STAGES * 8;
    const uint thread = threadIdx.x, role = thread >> 7, lane = thread & 31;
    const uint down = (size.n + GROUPS * 64 - 1) / (GROUPS * 64), across = (size.m + N - 1) / N, tiles = down * across;
    const uint all = (size.k + DEEP - 1) / DEEP, share = (all + size.splits - 1) / size.splits, work = tiles * size.batches * size.splits;

    if (thread == 0) {
        for (uint s = 0; s < L::STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, GROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    uint stage = 0, phase = 0;
    auto next = [&] { if (++stage == L::STAGES) { stage = 0; phase ^= 1; } };

    if (role == GROUPS) {
        if constexpr (GROUPS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if ((thread & 127) == 0)
            for (uint at = blockIdx.x; at < work; at += gridDim.x) {
                const Tile tile = tile_of(at % tiles, down, across);
                const uint batch = at / tiles % size.batches, first = at / tiles / size.batches * share, steps = min(share, all - min(first, all));
                const uint left = size.matrix(size.a, batch), right = size.matrix(size.b, batch);
                for (uint step = 0; step < steps; ++step) {
                    const uint depth = (first + step) * DEEP, to = base + stage * L::STAGE, ready = full + stage * 8;
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    barrier_expect(ready, L::STAGE);
                    #pragma unroll
                    for (uint g = 0; g < GROUPS; ++g) {
                        const uint line = (tile.row * GROUPS + g) * 64;
                        copy_panel(to + g * PANEL, &a, TA ? line : depth, TA ? depth : line, left, ready);
                    }
                    #pragma unroll
                    for (uint g = 0; g < N / 64; ++g) {
                        const uint line = tile.column * N + g * 64;
                        copy_panel(to + (GROUPS + g) * PANEL, &b, TB ? depth : line, TB ? line : depth, right, ready);
                    }
                    next();
                }
            }
        return;
    }

    if constexpr (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const uint warp = thread >> 5 & 3, own = results + role * 2 * PANEL;
    Sum *const part = (Sum *)(shared + (own - shared_address(shared))) + warp * 16 * PART;
    uint turn = 0; // The panel of results that is written next.
    auto release = [&](uint s) { if ((thread & 127) == 0) barrier_arrive(empty + s * 8); };
    for (uint at = blockIdx.x; at < work; at += gridDim.x) {
        const Tile tile = tile_of(at % tiles, down, across);
        const uint batch = at / tiles % size.batches, split = at / tiles / size.batches, first = split * share, steps = min(share, all - min(first, all));
        Sum sum[N / 2];
        uint before = 0;
        for (uint step = 0; step < steps; ++step) {
            barrier_wait(full + stage * 8, phase);
            const uint from = base + stage * L::STAGE;
            const ulong l = TA ? describe_across(from + role * PANEL) : describe(from + role * PANEL);
            const ulong r = TB ? describe(from + GROUPS * PANEL) : describe_across(from + GROUPS * PANEL);
            wgmma_fence();
            #pragma unroll
            for (uint s = 0; s < 4; ++s) product<TA, !TB>(E(), sum, l + s * (TA ? 128 : 2), r + s * (TB ? 2 : 128), step + s > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (step > 0) release(before);
            before = stage;
            next();
        }
        wgmma_wait<0>();
        release(before);
        if (at + gridDim.x >= work) dependency_launch();

        const uint row = (tile.row * GROUPS + role) * 64, column = tile.column * N;
        const size_t start = ((size_t)split * size.batches + batch) * size.n * size.m;
        if (finish & ENGINE) {
            // Panels of 64 rows × 128 bytes, of which the copy engine reads one while the next is written.
            constexpr uint WIDE = 128 / sizeof(T);
            #pragma unroll
            for (uint p = 0; p < N / WIDE; ++p) {
                if (column + p * WIDE >= size.m) break;
                const uint to = own + turn * PANEL;
                turn ^= 1;
                if ((thread & 127) == 0) stored_wait<1>();
                group_sync(1 + role);
                put_panel(to, warp, lane, *(const Sum (*)[WIDE / 2])(sum + p * WIDE / 2), T());
                engine_fence();
                group_sync(1 + role);
                if ((thread & 127) == 0) store_panel(&out, to, column + p * WIDE, row, batch);
            }
        } else if (finish & SUMS && size.m % 2 == 0) {
            // Four lanes' pairs are 32 bytes.
            Sum *const to = (Sum *)y + start;
            #pragma unroll
            for (uint i = 0; i < N / 2; i += 2) {
                const uint r = row + warp * 16 + (lane >> 2) + (i >> 1 & 1) * 8, c = column + (i >> 2) * 8 + (lane & 3) * 2;
                if (r < size.n && c < size.m) *(uint2 *)(to + (size_t)r * size.m + c) = make_uint2(bits(sum[i]), bits(sum[i + 1]));
            }
        } else
            // The loop is not unrolled, so that there is one text of what it does with sums.
            #pragma unroll 1
            for (uint chunk = 0; chunk < N / 32; ++chunk) {
                #pragma unroll
                for (uint c = 0; c < N / 32; ++c)
                    if (c == chunk)
                        #pragma unroll
                        for (uint i = 0; i < 16; ++i) part[((lane >> 2) + (i >> 1 & 1) * 8) * PART + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1)] = sum[c * 16 + i];
                store_part(part, lane, row + warp * 16, column + chunk * 32, size.n, size.m, finish, bias, residual, y, start);
            }
    }
    // Shared memory stays until it has been read.
    if ((thread & 127) == 0) stored_wait<0>();
}

// Grid: workgroups that go through the tiles of all batches and splits, each of which has a part of the depth.
#define MULTIPLY(name, E, T, Sum, TA, TB, GROUPS, N)                                                                                       \
    KERNEL_SHARED(name, 128 * (GROUPS + 1), GROUPS == 1 ? 2 : 1, MAP(0, a), MAP(1, b), MAP(2, out), IN(3, void, bias), IN(4, void, residual), OUT(5, void, y), BATCH_SIZES(6)) \
    {                                                                                                                                      \
        dependency_wait();                                                                                                                 \
        multiply<E, T, Sum, TA, TB, GROUPS, N>(a, b, out, (const T *)bias, (const T *)residual, y, SIZES(), finish);                            \
    }
#define TYPES(turns, TA, TB, GROUPS, N)                                                                                                    \
    MULTIPLY(batch_wgmma_bf16_##turns##_##GROUPS##_##N, Bfloats, __nv_bfloat16, float, TA, TB, GROUPS, N)                                  \
    MULTIPLY(batch_wgmma_f16_##turns##_##GROUPS##_##N, Halves, half, float, TA, TB, GROUPS, N)
#define TILES(GROUPS, N)                                                                                                                   \
    TYPES(nn, false, false, GROUPS, N)                                                                                                     \
    TYPES(nt, false, true, GROUPS, N)                                                                                                      \
    TYPES(tn, true, false, GROUPS, N)                                                                                                      \
    MULTIPLY(batch_wgmma_i8_nt_##GROUPS##_##N, Bytes, int, int, false, true, GROUPS, N)
TILES(2, 256)
TILES(2, 192)
TILES(2, 128)
TILES(2, 64)
TILES(1, 64)
