// only sm_90a
#include "dialect.h"
#include "matvec_i8.h"
// Products of one token with packed weights of two types, y = x wᵀ, as `matvec_packed.k`'s of one: the first `split` workgroups compute those with
// weights of the first type, the others those of the second. Metal's kernels have no room for so many arguments,
// and other NVIDIA GPUs make do with a launch for each type, so that the binary stays small.

// The matrices of a type, and their division among workgroups.
#define OF_TYPE(i, t) EARLY(i, uchar, t##_w0), EARLY(i + 1, uchar, t##_w1), EARLY(i + 2, uchar, t##_w2), EARLY(i + 3, uchar, t##_h0), EARLY(i + 4, uchar, t##_h1), EARLY(i + 5, uchar, t##_h2), \
  EARLY(i + 6, uchar, t##_s0), EARLY(i + 7, uchar, t##_s1), EARLY(i + 8, uchar, t##_s2), OUT(i + 9, float, t##_y0), OUT(i + 10, float, t##_y1), OUT(i + 11, float, t##_y2), \
  VAL(i + 12, uint, t##_m0), VAL(i + 13, uint, t##_m1), VAL(i + 14, uint, t##_each), VAL(i + 15, uint, t##_over), VAL(i + 16, uint, t##_teams), VAL(i + 17, uint, t##_slices), VAL(i + 18, uint, t##_magic)
#define TASK(t) {x, norm, t##_w0, t##_w1, t##_w2, t##_s0, t##_s1, t##_s2, t##_y0, t##_y1, t##_y2, nullptr, step, slot, k, t##_m0, t##_m1, \
  t##_each, t##_over, t##_teams, t##_slices, t##_magic, STORE, eps, least, per, t##_h0, t##_h1, t##_h2, x_scales, 0}

// The ranges as workgroups see them whose numbers begin with `first`.
FN Ahead ahead_from(Ahead a, uint first)
{
    UNROLL for (uint i = 0; i < 6; ++i) {
        const uint before = min(first * a.ranges[i].stride, a.ranges[i].total);
        a.ranges[i].p += before;
        a.ranges[i].total -= before;
    }
    return a;
}

#define MATVEC_TWO(name, V, W, HELD) KERNEL_SHARED(name, THREADS, 1, IN(0, float, x), EARLY(1, float, norm), IN(2, float, x_scales), IN(3, uint, step), VAL(4, uint, slot), VAL(5, uint, k), \
  VAL(6, float, eps), VAL(7, float, least), VAL(8, float, per), VAL(9, uint, split), OF_TYPE(10, first), OF_TYPE(29, second) AHEAD(48)) \
{ \
    DYNAMIC_SHARED(bytes); \
    DEPENDENCY_LAUNCH(); \
    const Ahead ahead = AHEAD_VALUE; \
    if (GROUP.x < split) { \
        const Task a = TASK(first); \
        products<V, false, HELD>(a, ahead, bytes, GROUP.x, LOCAL.x); \
    } else { \
        const Task a = TASK(second); \
        const Ahead rest = ahead_from(ahead, split); \
        products<W, false, HELD>(a, rest, bytes, GROUP.x - split, LOCAL.x); \
    } \
}
// Rows of more than 4,096 elements with a norm are quantised in rounds.
MATVEC_TWO(q4_k_q5_k_rows, Q4_K, Q5_K, 2)
MATVEC_TWO(q4_k_q5_k_long, Q4_K, Q5_K, 8)
MATVEC_TWO(q4_k_q6_k_rows, Q4_K, Q6_K, 2)
MATVEC_TWO(q5_k_q6_k_rows, Q5_K, Q6_K, 2)
