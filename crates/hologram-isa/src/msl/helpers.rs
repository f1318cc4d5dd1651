//! Helper functions of the text, which define cases that the language leaves open. Each is printed once if needed.

use std::collections::BTreeMap;

use super::functions;
use crate::Opcode;

/// The atomic sum of floats in one address space.
macro_rules! add_f32 {
    ($name:literal, $space:literal) => {
        ($name, &[], concat!("static inline float ", $name, "(", $space, " float *at, float x)
{
    ", $space, " atomic_uint *word = (", $space, " atomic_uint *)at;
    uint before = atomic_load_explicit(word, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(word, &before, as_type<uint>(as_type<float>(before) + x), memory_order_relaxed, memory_order_relaxed)) {
    }
    return as_type<float>(before);
}
"))
    };
}

/// Compare-exchange of one type in one address space: retries spurious failures.
#[rustfmt::skip]
macro_rules! cas {
    ($name:literal, $space:literal, $ty:literal) => {
        ($name, &[], concat!("static inline ", $ty, " ", $name, "(", $space, " atomic_", $ty, " *at, ", $ty, " expected, ", $ty, " x)
{
    ", $ty, " before = expected;
    while (!atomic_compare_exchange_weak_explicit(at, &before, x, memory_order_relaxed, memory_order_relaxed)) {
        if (before != expected) break;
    }
    return before;
}
"))
    };
}

/// Name, the helpers it calls, text. Each follows those that it calls.
const HELPERS: &[(&str, &[&str], &str)] = &[
    ("note", &["record"], "static inline void note(thread uint &site, thread uint &element, uint which, uint at)
{
    if (site == 0u) { site = which; element = at; }
}
"),
    // The first thread writes the record.
    ("record", &[], "static inline void record(device atomic_uint *faults, uint line, uint memory, uint element, uint3 group, uint thread_index)
{
    uint none = 0u;
    while (!atomic_compare_exchange_weak_explicit(&faults[0], &none, 1u, memory_order_relaxed, memory_order_relaxed)) {
        if (none != 0u) return;
    }
    const uint words[7] = {line, memory, element, group.x, group.y, group.z, thread_index};
    for (uint i = 0u; i < 7u; ++i) atomic_store_explicit(&faults[i + 1u], words[i], memory_order_relaxed);
}
"),
    ("is_nan", &[], "static inline bool is_nan(float x) { return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u; }
"),
    // Converts a float's bits to an integer in the same order, and back.
    ("ordered", &[], "static inline int ordered(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
"),
    // Comparisons on integers, because the GPU counts subnormal numbers as 0. Its own comparison rejects NaN.
    ("place", &[], "static inline int place(float x) { return as_type<int>(x) < 0 ? -(as_type<int>(x) & 0x7fffffff) : as_type<int>(x); }
"),
    ("eq_f32", &["place"], "static inline bool eq_f32(float a, float b) { return a == b && place(a) == place(b); }
"),
    ("lt_f32", &["place"], "static inline bool lt_f32(float a, float b) { return a <= b && place(a) < place(b); }
"),
    ("le_f32", &["place"], "static inline bool le_f32(float a, float b) { return a <= b && place(a) <= place(b); }
"),
    // A number beats NaN; -0 is less than +0.
    ("min_f32", &["is_nan", "ordered"], "static inline float min_f32(float a, float b)
{
    return is_nan(b) || (!is_nan(a) && ordered(as_type<int>(a)) <= ordered(as_type<int>(b))) ? a : b;
}
"),
    ("max_f32", &["is_nan", "ordered"], "static inline float max_f32(float a, float b)
{
    return is_nan(b) || (!is_nan(a) && ordered(as_type<int>(a)) >= ordered(as_type<int>(b))) ? a : b;
}
"),
    // Subnormal numbers are rounded away from 0 too.
    ("floor_f32", &[], "static inline float floor_f32(float x)
{
    return as_type<uint>(x) - 0x80000001u < 0x7fffffu ? -1.0f : floor(x);
}
"),
    ("ceil_f32", &[], "static inline float ceil_f32(float x) { return as_type<uint>(x) - 1u < 0x7fffffu ? 1.0f : ceil(x); }
"),
    ("mulhi_u64", &[], "static inline ulong mulhi_u64(ulong a, ulong b)
{
    const ulong al = a & 0xffffffffu, ah = a >> 32, bl = b & 0xffffffffu, bh = b >> 32;
    const ulong low = al * bl, mid = ah * bl + (low >> 32), cross = al * bh + (mid & 0xffffffffu);
    return ah * bh + (mid >> 32) + (cross >> 32);
}
"),
    ("mulhi_i64", &["mulhi_u64"], "static inline long mulhi_i64(long a, long b)
{
    return long(mulhi_u64(ulong(a), ulong(b)) - (a < 0 ? ulong(b) : 0ul) - (b < 0 ? ulong(a) : 0ul));
}
"),
    ("clz_u64", &[], "static inline ulong clz_u64(ulong x)
{
    const uint high = uint(x >> 32);
    return ulong(high != 0u ? clz(high) : 32u + clz(uint(x)));
}
"),
    ("popcount_u64", &[], "static inline ulong popcount_u64(ulong x) { return ulong(popcount(uint(x)) + popcount(uint(x >> 32))); }
"),
    // The sum of the four bytes' products.
    ("dot4_i32", &[], "static inline int dot4_i32(int a, int b, int c)
{
    const int4 p = int4(as_type<char4>(a)) * int4(as_type<char4>(b));
    return int(uint(c) + uint(p.x) + uint(p.y) + uint(p.z) + uint(p.w));
}
"),
    ("dot4_u32", &[], "static inline uint dot4_u32(uint a, uint b, uint c)
{
    const uint4 p = uint4(as_type<uchar4>(a)) * uint4(as_type<uchar4>(b));
    return c + p.x + p.y + p.z + p.w;
}
"),
    // Division by zero gives 0, or the dividend; the minimum divided by -1 gives itself, or 0.
    ("div_i32", &[], "static inline int div_i32(int a, int b) { return b == 0 ? 0 : b == -1 ? int(0u - uint(a)) : a / b; }
"),
    ("rem_i32", &[], "static inline int rem_i32(int a, int b) { return b == 0 ? a : b == -1 ? 0 : a % b; }
"),
    ("div_u32", &[], "static inline uint div_u32(uint a, uint b) { return b == 0u ? 0u : a / b; }
"),
    ("rem_u32", &[], "static inline uint rem_u32(uint a, uint b) { return b == 0u ? a : a % b; }
"),
    ("div_i64", &[], "static inline long div_i64(long a, long b) { return b == 0 ? 0 : b == -1 ? long(0ul - ulong(a)) : a / b; }
"),
    ("rem_i64", &[], "static inline long rem_i64(long a, long b) { return b == 0 ? a : b == -1 ? 0 : a % b; }
"),
    ("div_u64", &[], "static inline ulong div_u64(ulong a, ulong b) { return b == 0ul ? 0ul : a / b; }
"),
    ("rem_u64", &[], "static inline ulong rem_u64(ulong a, ulong b) { return b == 0ul ? a : a % b; }
"),
    // Rounded toward zero, clamped, NaN to 0.
    ("i32_of", &[], "static inline int i32_of(float x)
{
    return x >= 2147483648.0f ? 2147483647 : x > -2147483648.0f ? int(x) : x <= -2147483648.0f ? (-2147483647 - 1) : 0;
}
"),
    ("u32_of", &[], "static inline uint u32_of(float x) { return x >= 4294967296.0f ? 0xffffffffu : x > 0.0f ? uint(x) : 0u; }
"),
    ("i64_of", &[], "static inline long i64_of(float x)
{
    const long least = long(0x8000000000000000ul);
    return x >= 9223372036854775808.0f ? ~least : x > -9223372036854775808.0f ? long(x) : x <= -9223372036854775808.0f ? least : 0l;
}
"),
    ("u64_of", &[], "static inline ulong u64_of(float x) { return x >= 18446744073709551616.0f ? ~0ul : x > 0.0f ? ulong(x) : 0ul; }
"),
    ("f32_of_f16", &[], "static inline float f32_of_f16(ushort bits) { return float(as_type<half>(bits)); }
"),
    ("f16_of", &[], "static inline ushort f16_of(float x) { return as_type<ushort>(half(x)); }
"),
    ("f32_of_bf16", &[], "static inline float f32_of_bf16(ushort bits) { return as_type<float>(uint(bits) << 16); }
"),
    ("bf16_of", &["is_nan"], "static inline ushort bf16_of(float x)
{
    const uint bits = as_type<uint>(x);
    return ushort(is_nan(x) ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
"),
    // An integer as f32, rounded to odd (toward zero, with the last bit set if inexact), so that rounding again to a
    // shorter type equals rounding once.
    ("odd_u64", &["clz_u64"], "static inline float odd_u64(ulong x)
{
    const uint bits = 64u - uint(clz_u64(x));
    if (bits <= 24u) return float(uint(x));
    const uint lost = bits - 24u;
    const ulong kept = x >> lost;
    return float(uint(kept) | uint((kept << lost) != x)) * as_type<float>((127u + lost) << 23);
}
"),
    ("odd_i64", &["odd_u64"], "static inline float odd_i64(long x) { return x < 0 ? -odd_u64(0ul - ulong(x)) : odd_u64(ulong(x)); }
"),
    ("shuffle_u64", &[], "static inline ulong shuffle_u64(ulong x, ushort lane) { return as_type<ulong>(simd_shuffle(as_type<uint2>(x), lane)); }
"),
    ("shuffle_i64", &["shuffle_u64"], "static inline long shuffle_i64(long x, ushort lane) { return long(shuffle_u64(ulong(x), lane)); }
"),
    ("shuffle_bool", &[], "static inline bool shuffle_bool(bool x, ushort lane) { return simd_shuffle(uint(x), lane) != 0u; }
"),
    ("lanes_where", &[], "static inline uint lanes_where(bool x) { return uint((simd_vote::vote_t)simd_ballot(x)); }
"),
    // Products of tiles: row lane / 4 of the left tile, columns 2·(lane mod 4) and the next of the right tile,
    // gathered from the lanes that hold them.
    ("tile_i8", &["dot4_i32"], "static inline ulong tile_i8(uint a, uint b, ulong c, uint lane)
{
    int low = int(uint(c)), high = int(uint(c >> 32));
    for (uint k = 0u; k < 4u; ++k) {
        const int row = int(simd_shuffle(a, ushort((lane & 28u) + k)));
        low = dot4_i32(row, int(simd_shuffle(b, ushort((lane & 3u) * 8u + k))), low);
        high = dot4_i32(row, int(simd_shuffle(b, ushort((lane & 3u) * 8u + 4u + k))), high);
    }
    return ulong(uint(low)) | ulong(uint(high)) << 32;
}
"),
    ("tile_f16", &["f32_of_f16"], TILE_F16),
    ("tile_bf16", &["f32_of_bf16"], TILE_BF16),
    add_f32!("atomic_add_f32", "device"),
    add_f32!("atomic_add_shared_f32", "threadgroup"),
    cas!("cas_i32", "device", "int"),
    cas!("cas_u32", "device", "uint"),
    cas!("cas_shared_i32", "threadgroup", "int"),
    cas!("cas_shared_u32", "threadgroup", "uint"),
];

/// A product of tiles of 16-bit floats; takes a name and the function that widens an element.
macro_rules! float_tile {
    ($name:literal, $widen:literal) => {
        concat!(
            "static inline ulong ",
            $name,
            "(uint a, uint b, ulong c, uint lane)
{
    float low = as_type<float>(uint(c)), high = as_type<float>(uint(c >> 32));
    for (uint k = 0u; k < 4u; ++k) {
        const uint row = simd_shuffle(a, ushort((lane & 28u) + k));
        const uint left = simd_shuffle(b, ushort((lane & 3u) * 8u + k));
        const uint right = simd_shuffle(b, ushort((lane & 3u) * 8u + 4u + k));
        for (uint half_word = 0u; half_word < 32u; half_word += 16u) {
            const float x = ",
            $widen,
            "(ushort(row >> half_word));
            low = fma(x, ",
            $widen,
            "(ushort(left >> half_word)), low);
            high = fma(x, ",
            $widen,
            "(ushort(right >> half_word)), high);
        }
    }
    return ulong(as_type<uint>(low)) | ulong(as_type<uint>(high)) << 32;
}
"
        )
    };
}
const TILE_F16: &str = float_tile!("tile_f16", "f32_of_f16");
const TILE_BF16: &str = float_tile!("tile_bf16", "f32_of_bf16");

/// The helpers of a text: those of the table, and functions of the instruction table.
#[derive(Default)]
pub(super) struct Helpers {
    used: Vec<bool>,
    functions: BTreeMap<Opcode, String>,
}

impl Helpers {
    /// Adds a helper and those it calls.
    pub(super) fn add(&mut self, name: &str) {
        self.used.resize(HELPERS.len(), false);
        if let Some(index) = HELPERS.iter().position(|h| h.0 == name)
            && !self.used[index]
        {
            self.used[index] = true;
            HELPERS[index].1.iter().for_each(|called| self.add(called));
        }
    }

    /// Adds a function of the instruction table on `f32`. Returns its name, or `None` if there is none.
    pub(super) fn function(&mut self, op: Opcode) -> Option<String> {
        let name = format!("{}_f32", op.info().mnemonic);
        if !self.functions.contains_key(&op) {
            let text = functions::exact(op, &name)?;
            if text.contains(functions::LESS) {
                self.add(functions::LESS);
            }
            self.functions.insert(op, text);
        }
        Some(name)
    }

    pub(super) fn text(&self) -> String {
        let helpers = HELPERS.iter().zip(&self.used).filter(|(_, used)| **used).map(|(h, _)| h.2);
        helpers.chain(self.functions.values().map(String::as_str)).flat_map(|text| [text, "\n"]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_stand_behind_what_they_call() {
        for (i, (name, calls, text)) in HELPERS.iter().enumerate() {
            assert!(text.contains(&format!(" {name}(")), "{name}");
            for called in *calls {
                let at = HELPERS.iter().position(|h| h.0 == *called);
                assert!(at.is_some_and(|at| at < i) || *name == "note", "{name} calls {called}");
            }
        }
    }
}
