// A router's choice among the elements of a row: the k greatest, in descending order, of equal ones the lower index first, as `top_k.k` has it.
#define MOST_CHOSEN 32
// The weights of the chosen: none, their probabilities among themselves or among all.
#define INDICES 0u
#define SOFTMAX_AFTER 1u
#define SOFTMAX_BEFORE 2u
HOST(INDICES, SOFTMAX_AFTER, SOFTMAX_BEFORE)

// Sorts as numbers do, -0 equal to +0, NaN above all; 0 is no number's.
FN uint key_of(float x)
{
    if (x != x) return ~0u;
    const uint b = as_uint(x + 0.0f);
    return b >> 31 ? ~b : b | 0x80000000u;
}

// A SIMD-group has a row of n elements, those at v · 32 + lane in r, beyond the last -INFINITY. Lane i has the i-th chosen in `chosen` and its weight in `value`.
template <uint V> FN void choose(thread float *r, uint n, uint k, uint form, uint lane, thread uint &chosen, thread float &value)
{
    if (form == SOFTMAX_BEFORE) {
        float m = -INFINITY, s = 0;
        UNROLL for (uint v = 0; v < V; ++v) m = max(m, r[v]);
        m = simd_max(m);
        UNROLL for (uint v = 0; v < V; ++v) {
            r[v] = exp(r[v] - m);
            s += r[v];
        }
        s = 1.0f / simd_sum(s);
        UNROLL for (uint v = 0; v < V; ++v) r[v] = r[v] * s;
    }
    uint keys[V];
    UNROLL for (uint v = 0; v < V; ++v) keys[v] = v * 32 + lane < n ? key_of(r[v]) : 0;
    chosen = 0;
    value = -INFINITY;
    ROLLED for (uint i = 0; i < k; ++i) {
        uint key = 0, place = 0;
        float own = 0;
        UNROLL for (uint v = 0; v < V; ++v) if (keys[v] > key) { key = keys[v]; place = v; own = r[v]; }
        const uint greatest = simd_max(key);
        const uint index = ~simd_max(key == greatest ? ~(place * 32 + lane) : 0u);
        const float of_index = simd_shuffle(own, index % 32);
        if (lane == i) { chosen = index; value = of_index; }
        UNROLL for (uint v = 0; v < V; ++v) if (v * 32 + lane == index) keys[v] = 0;
    }
    if (form == SOFTMAX_AFTER) {
        const float greatest = simd_broadcast(value, 0), e = lane < k ? exp(value - greatest) : 0.0f;
        value = e / simd_sum(e);
    }
}
