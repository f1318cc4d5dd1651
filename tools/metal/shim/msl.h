// The Metal Shading Language on a CPU: gives a unit that lowering.py made the names it expects. Needs clang 19 or later; plain C++17
// without standard headers, so that nothing leaks in that Metal lacks.
//   MSL_SPACES=1  address spaces are clang's, so that mixing them is an error: the strict check
//   MSL_SPACES=0  address spaces are erased: to run
#pragma once
#ifndef MSL_SPACES
#define MSL_SPACES 0
#endif
#if MSL_SPACES
#define device      __attribute__((address_space(1)))
#define constant    const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
#else
#define device
#define constant    const
#define threadgroup
#define thread
#endif
#define kernel
#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_INTERNAL METAL_FUNC
#define MSL_INL static inline __attribute__((always_inline))
#define __METAL__ 1

typedef unsigned char uchar;  typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;
typedef __SIZE_TYPE__ size_t; typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;
typedef uchar uint8_t; typedef ushort uint16_t; typedef uint uint32_t; typedef ulong uint64_t;
typedef _Float16 half;  typedef __bf16 bfloat;

#define MSL_EACH_ELEM(X) X(float) X(half) X(bfloat) X(int) X(uint) X(short) X(ushort) X(char) X(uchar) X(long) X(ulong) X(bool)
#define X(T) typedef T T##2 __attribute__((ext_vector_type(2))); typedef T T##3 __attribute__((ext_vector_type(3))); typedef T T##4 __attribute__((ext_vector_type(4)));
MSL_EACH_ELEM(X)
#undef X

namespace metal { // the types are global here; metal::float4 must name them too
#define X(T) using ::T##2; using ::T##3; using ::T##4;
MSL_EACH_ELEM(X)
#undef X
using ::uchar; using ::ushort; using ::uint; using ::ulong; using ::size_t; using ::ptrdiff_t; using ::half; using ::bfloat;
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t; using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t;
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));

// ---- type traits -------------------------------------------------------------------------------
template <class T, T v> struct integral_constant { static constexpr T value = v; typedef T value_type; constexpr operator T() const { return v; } };
typedef integral_constant<bool, true> true_type; typedef integral_constant<bool, false> false_type;
template <class A, class B> struct is_same : false_type {}; template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, class T = void> struct enable_if {}; template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional { typedef T type; }; template <class T, class F> struct conditional<false, T, F> { typedef F type; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class T> struct remove_reference { typedef T type; }; template <class T> struct remove_reference<T &> { typedef T type; };
template <class T> struct is_floating_point : false_type {};
template <> struct is_floating_point<float> : true_type {}; template <> struct is_floating_point<half> : true_type {}; template <> struct is_floating_point<bfloat> : true_type {};
template <class T> constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T> struct is_integral : integral_constant<bool, __is_integral(T)> {};
template <class T> constexpr bool is_integral_v = is_integral<T>::value;
template <class T> constexpr bool is_signed_v = __is_signed(T);
template <class T> constexpr bool is_unsigned_v = __is_unsigned(T);
template <class T> struct is_unsigned : integral_constant<bool, __is_unsigned(T)> {};
template <class T> struct remove_cv { typedef T type; }; template <class T> struct remove_cv<const T> { typedef T type; };
#if MSL_SPACES
template <class T> struct remove_cv<device T> { typedef T type; }; template <class T> struct remove_cv<const device T> { typedef T type; };
template <class T> struct remove_cv<threadgroup T> { typedef T type; }; template <class T> struct remove_cv<const threadgroup T> { typedef T type; }; template <class T> struct remove_cv<constant T> { typedef T type; };
#endif
template <class T> using remove_cv_t = typename remove_cv<T>::type; template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class...> using void_t = void;

// ---- vector constructors: the tool rewrites `float4(...)` and `vec<T,N>(...)` to msl_make<...>(...)
template <class V> struct vtraits { typedef V elem; static constexpr int n = 1; };
#define X(T) template <> struct vtraits<T##2> { typedef T elem; static constexpr int n = 2; }; template <> struct vtraits<T##3> { typedef T elem; static constexpr int n = 3; }; template <> struct vtraits<T##4> { typedef T elem; static constexpr int n = 4; };
MSL_EACH_ELEM(X)
#undef X
template <class V, class A> MSL_INL V msl_make(A a) {
  if constexpr (vtraits<A>::n == 1) { if constexpr (vtraits<V>::n == 1) return (V)a; else { V v; for (int i = 0; i < vtraits<V>::n; i++) v[i] = (typename vtraits<V>::elem)a; return v; } }
  else { static_assert(vtraits<A>::n == vtraits<V>::n, "vector size"); return __builtin_convertvector(a, V); }
}
template <int at, class V, class A> MSL_INL void msl_put(V &v, A a) {
  if constexpr (vtraits<A>::n == 1) v[at] = (typename vtraits<V>::elem)a; else for (int i = 0; i < vtraits<A>::n; i++) v[at + i] = (typename vtraits<V>::elem)a[i];
}
template <int at, class V, class A, class... R> MSL_INL void msl_fill(V &v, A a, R... r) {
  msl_put<at>(v, a);
  if constexpr (sizeof...(R) > 0) msl_fill<at + vtraits<A>::n>(v, r...); else static_assert(at + vtraits<A>::n == vtraits<V>::n, "vector constructor: wrong number of elements");
}
template <class V, class A, class B, class... R> MSL_INL V msl_make(A a, B b, R... r) { V v; msl_fill<0>(v, a, b, r...); return v; }
template <class V> MSL_INL V msl_make() { V v = {}; return v; }
template <class V> struct msl_cast {};                         // (float4)x  ->  msl_cast<float4>{}->*x
template <class V, class A> MSL_INL V operator->*(msl_cast<V>, A a) { return msl_make<V>(a); }

template <class D, class S> MSL_INL D msl_as_type(S s) { static_assert(sizeof(D) == sizeof(S), "as_type size"); return __builtin_bit_cast(D, s); }
#define as_type metal::msl_as_type

// ---- accuracy: Metal promises so many units in the last place of f32, and another library than the host's computes.
// Launches that flush subnormal numbers, as Apple's GPUs do, get some value within that bound (less the one unit that
// the host's may err); 0, 1, infinity and NaN stay, and nothing passes 1. ----
template <int ulps> MSL_INL float msl_near(float v) {
  const uint bits = __builtin_bit_cast(uint, v), size = bits & 0x7fffffffu;
  if (!(__builtin_ia32_stmxcsr() & 0x8000u) || size < 0x00801000u || size >= 0x7f7ff000u || size == 0x3f800000u) return v;
  const uint moved = bits + (bits * 2654435761u >> 8) % (2 * ulps + 1) - ulps, now = moved & 0x7fffffffu;
  return (size < 0x3f800000u) == (now < 0x3f800000u) ? __builtin_bit_cast(float, moved) : v;
}
template <int ulps, class V> MSL_INL V msl_near(V v) {
  if constexpr (__is_same(V, float2) || __is_same(V, float3) || __is_same(V, float4)) for (int i = 0; i < vtraits<V>::n; i++) v[i] = msl_near<ulps>((float)v[i]);
  return v;
}

// ---- math: real overload sets, as in <metal_math>, so that ambiguous calls are ambiguous here too ----
#define MSL_F(X) X(float) X(float2) X(float3) X(float4) X(half) X(half2) X(half3) X(half4)
#define MSL_B(X) X(bfloat)
#define MSL_I(X) X(int) X(int2) X(int3) X(int4) X(uint) X(uint2) X(uint3) X(uint4) X(short) X(short2) X(short3) X(short4) X(ushort) X(ushort2) X(ushort3) X(ushort4) X(char) X(char2) X(char4) X(uchar) X(uchar2) X(uchar4) X(long) X(long2) X(ulong) X(ulong2)
#define MSL_UN(name, e) \
  MSL_F1(name, e) MSL_INL bfloat name(bfloat x_) { float x = (float)x_; return (bfloat)(e); }
#define MSL_F1(name, e) \
  MSL_INL float name(float x) { return e; } MSL_INL float2 name(float2 x) { return e; } MSL_INL float3 name(float3 x) { return e; } MSL_INL float4 name(float4 x) { return e; } \
  MSL_INL half name(half x) { return e; } MSL_INL half2 name(half2 x) { return e; } MSL_INL half3 name(half3 x) { return e; } MSL_INL half4 name(half4 x) { return e; }
#define MSL_MATH \
  MSL_UN(exp, msl_near<3>(__builtin_elementwise_exp(x))) MSL_UN(exp2, msl_near<3>(__builtin_elementwise_exp2(x))) MSL_UN(log, msl_near<3>(__builtin_elementwise_log(x))) MSL_UN(log2, msl_near<3>(__builtin_elementwise_log2(x))) MSL_UN(log10, msl_near<3>(__builtin_elementwise_log10(x))) \
  MSL_UN(sin, msl_near<3>(__builtin_elementwise_sin(x))) MSL_UN(cos, msl_near<3>(__builtin_elementwise_cos(x))) MSL_UN(tan, msl_near<5>(__builtin_elementwise_tan(x))) MSL_UN(tanh, msl_near<4>(__builtin_elementwise_tanh(x))) MSL_UN(sinh, msl_near<3>(__builtin_elementwise_sinh(x))) MSL_UN(cosh, msl_near<3>(__builtin_elementwise_cosh(x))) \
  MSL_UN(asin, msl_near<3>(__builtin_elementwise_asin(x))) MSL_UN(acos, msl_near<3>(__builtin_elementwise_acos(x))) MSL_UN(atan, msl_near<4>(__builtin_elementwise_atan(x))) \
  MSL_UN(sqrt, __builtin_elementwise_sqrt(x)) MSL_UN(rsqrt, msl_near<1>(1 / __builtin_elementwise_sqrt(x))) MSL_UN(fabs, __builtin_elementwise_abs(x)) \
  MSL_UN(floor, __builtin_elementwise_floor(x)) MSL_UN(ceil, __builtin_elementwise_ceil(x)) MSL_UN(trunc, __builtin_elementwise_trunc(x)) MSL_UN(rint, __builtin_elementwise_rint(x)) MSL_UN(round, __builtin_elementwise_round(x)) \
  MSL_UN(exp10, msl_near<3>(__builtin_elementwise_exp2(x * 3.32192809488736f)))
MSL_MATH
MSL_UN(fract, x - __builtin_elementwise_floor(x))
MSL_UN(abs, __builtin_elementwise_abs(x))
MSL_INL int abs(int x) { return x < 0 ? -x : x; } MSL_INL long abs(long x) { return x < 0 ? -x : x; } MSL_INL short abs(short x) { return x < 0 ? -x : x; }
#define X(T) \
  MSL_INL T fma(T a, T b, T c) { return __builtin_elementwise_fma(a, b, c); } \
  MSL_INL T pow(T a, T b) { return msl_near<15>(__builtin_elementwise_pow(a, b)); } MSL_INL T powr(T a, T b) { return msl_near<15>(__builtin_elementwise_pow(a, b)); } \
  MSL_INL T fmin(T a, T b) { return __builtin_elementwise_min(a, b); } MSL_INL T fmax(T a, T b) { return __builtin_elementwise_max(a, b); } \
  MSL_INL T fmod(T a, T b) { return a - b * __builtin_elementwise_trunc(a / b); } \
  MSL_INL T mix(T a, T b, T t) { return a + (b - a) * t; } MSL_INL T saturate(T a) { return __builtin_elementwise_min(__builtin_elementwise_max(a, (T)0), (T)1); } \
  MSL_INL T divide(T a, T b) { return a / b; } MSL_INL T copysign(T a, T b) { return __builtin_elementwise_copysign(a, b); }
MSL_F(X)
#undef X
MSL_INL bfloat fma(bfloat a, bfloat b, bfloat c) { return (bfloat)__builtin_fmaf(a, b, c); }
MSL_INL bfloat pow(bfloat a, bfloat b) { return (bfloat)__builtin_powf(a, b); }
MSL_INL bfloat fmod(bfloat a, bfloat b) { return (bfloat)__builtin_fmodf(a, b); }
MSL_INL float atan2(float a, float b) { return __builtin_atan2f(a, b); }
MSL_INL float ldexp(float a, int b) { return __builtin_ldexpf(a, b); }
#define X(T) \
  MSL_INL T min(T a, T b) { return __builtin_elementwise_min(a, b); } MSL_INL T max(T a, T b) { return __builtin_elementwise_max(a, b); } \
  MSL_INL T clamp(T a, T lo, T hi) { return __builtin_elementwise_min(__builtin_elementwise_max(a, lo), hi); }
MSL_F(X) MSL_I(X)
#undef X
MSL_INL bfloat min(bfloat a, bfloat b) { return a < b ? a : b; } MSL_INL bfloat max(bfloat a, bfloat b) { return a > b ? a : b; }
#define X(T) \
  MSL_INL bool isnan(T a) { return a != a; } MSL_INL bool isinf(T a) { return __builtin_isinf((float)a); } MSL_INL bool isfinite(T a) { return __builtin_isfinite((float)a); } \
  MSL_INL T sign(T a) { return a > (T)0 ? (T)1 : a < (T)0 ? (T)-1 : (T)0; } MSL_INL bool signbit(T a) { return __builtin_signbit((float)a); }
X(float) X(half) X(bfloat)
#undef X
template <class T> MSL_INL T select(T a, T b, bool c) { return c ? b : a; }
template <class T, int N, class C> MSL_INL vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<C, N> c) { vec<T, N> r; for (int i = 0; i < N; i++) r[i] = c[i] ? b[i] : a[i]; return r; }
template <class C, int N> MSL_INL bool any(vec<C, N> c) { bool r = false; for (int i = 0; i < N; i++) r |= (bool)c[i]; return r; }
template <class C, int N> MSL_INL bool all(vec<C, N> c) { bool r = true; for (int i = 0; i < N; i++) r &= (bool)c[i]; return r; }
#define X(T) \
  MSL_INL T dot(T##2 a, T##2 b) { return a.x * b.x + a.y * b.y; } MSL_INL T dot(T##3 a, T##3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; } \
  MSL_INL T dot(T##4 a, T##4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
X(float) X(half)
#undef X
MSL_INL float length(float2 a) { return sqrt(dot(a, a)); } MSL_INL float length(float3 a) { return sqrt(dot(a, a)); } MSL_INL float length(float4 a) { return sqrt(dot(a, a)); }
#define X(T, U, bits, pop, lead, trail) \
  MSL_INL T popcount(T x) { return (T)pop((U)x); } MSL_INL T clz(T x) { return x ? (T)lead((U)x) : (T)bits; } MSL_INL T ctz(T x) { return x ? (T)trail((U)x) : (T)bits; }
X(int, uint, 32, __builtin_popcount, __builtin_clz, __builtin_ctz) X(uint, uint, 32, __builtin_popcount, __builtin_clz, __builtin_ctz)
X(long, ulong, 64, __builtin_popcountl, __builtin_clzl, __builtin_ctzl) X(ulong, ulong, 64, __builtin_popcountl, __builtin_clzl, __builtin_ctzl)
#undef X
#define X(T, W, bits) MSL_INL T mulhi(T a, T b) { return (T)(((W)a * (W)b) >> bits); }
X(uint, ulong, 32) X(int, long, 32) X(ulong, unsigned __int128, 64) X(long, __int128, 64)
#undef X
MSL_INL uint reverse_bits(uint x) { return __builtin_bitreverse32(x); }
MSL_INL uint extract_bits(uint x, uint o, uint n) { return (x >> o) & ((1u << n) - 1); }
MSL_INL uint rotate(uint x, uint n) { return (x << (n & 31)) | (x >> ((32 - n) & 31)); }
namespace precise { MSL_MATH
#define X(T) MSL_INL T pow(T a, T b) { return __builtin_elementwise_pow(a, b); } MSL_INL T divide(T a, T b) { return a / b; } MSL_INL T fma(T a, T b, T c) { return __builtin_elementwise_fma(a, b, c); } MSL_INL T max(T a, T b) { return __builtin_elementwise_max(a, b); } MSL_INL T min(T a, T b) { return __builtin_elementwise_min(a, b); }
MSL_F(X)
#undef X
}
namespace fast { MSL_MATH
#define X(T) MSL_INL T pow(T a, T b) { return __builtin_elementwise_pow(a, b); } MSL_INL T divide(T a, T b) { return a / b; } MSL_INL T fma(T a, T b, T c) { return __builtin_elementwise_fma(a, b, c); } MSL_INL T max(T a, T b) { return __builtin_elementwise_max(a, b); } MSL_INL T min(T a, T b) { return __builtin_elementwise_min(a, b); }
MSL_F(X)
#undef X
}

template <class T> struct numeric_limits;
#define X(T, lo, hi) template <> struct numeric_limits<T> { static constexpr bool is_integer = true; static constexpr T max() { return hi; } static constexpr T min() { return lo; } static constexpr T lowest() { return lo; } };
X(char, -128, 127) X(uchar, 0, 255) X(short, -32768, 32767) X(ushort, 0, 65535) X(int, -2147483647 - 1, 2147483647) X(uint, 0, 4294967295u) X(long, -9223372036854775807L - 1, 9223372036854775807L) X(ulong, 0, 18446744073709551615UL) X(bool, false, true)
#undef X
#define X(T, mx, mn, eps) template <> struct numeric_limits<T> { static constexpr bool is_integer = false; static constexpr T max() { return (T)mx; } static constexpr T min() { return (T)mn; } static constexpr T lowest() { return (T)-mx; } static constexpr T epsilon() { return (T)eps; } static constexpr T infinity() { return (T)__builtin_inff(); } static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); } };
X(float, 3.40282347e+38f, 1.17549435e-38f, 1.1920929e-7f) X(half, 65504.0f, 6.1035e-5f, 9.765625e-4f) X(bfloat, 3.38953139e38f, 1.17549435e-38f, 7.8125e-3f)
#undef X

// ---- synchronisation and SIMD-group functions (bodies in runtime.cpp) ---------------------------------
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_threadgroup_imageblock = 8 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }
enum memory_order { memory_order_relaxed = 0, memory_order_seq_cst = 5 };
} // namespace metal

extern "C" {
void msl_rt_barrier(uint flags, int line);
void msl_rt_simd_barrier(uint flags, int line);
void *msl_rt_simd_xchg(const void *mine, uint size, int line, ulong *active); // -> array of 32 slots, 64 bytes apart; *active: which lanes took part
uint msl_rt_lane(void);
void *msl_rt_tg_slot(int id, ulong size, ulong align);
}

namespace metal {
#define MSL_LINE int line = __builtin_LINE()
MSL_INL void threadgroup_barrier(mem_flags f, MSL_LINE) { msl_rt_barrier((uint)f, line); }
MSL_INL void simdgroup_barrier(mem_flags f, MSL_LINE) { msl_rt_simd_barrier((uint)f, line); }

template <class T> struct msl_lanes { // the other lanes' values
  const char *p; ulong active;
  MSL_INL T get(const char *p, uint lane) { T t; __builtin_memcpy(&t, p + lane * 64, sizeof(T)); return t; }
  T operator[](uint lane) const { return get(p, lane & 31); }
};
template <class T> MSL_INL msl_lanes<T> msl_xchg_any(T x, int line) { static_assert(sizeof(T) <= 64, ""); msl_lanes<T> r; r.p = (const char *)msl_rt_simd_xchg(&x, sizeof(T), line, &r.active); return r; }
template <class T> MSL_INL msl_lanes<T> msl_xchg(T x, int line) { // the public SIMD functions: no 64-bit and no bool elements in MSL
  static_assert(sizeof(typename vtraits<T>::elem) <= 4 && !is_same_v<typename vtraits<T>::elem, bool>, "SIMD-group functions take 8 to 32 bit scalars and vectors of them");
  return msl_xchg_any(x, line); }
// butterfly order, as the hardware's tree would be: deterministic, and the same bits in every lane
template <class T, class F> MSL_INL T msl_reduce(T x, T id, int line, F f) {
  auto l = msl_xchg(x, line); T v[32];
  for (uint i = 0; i < 32; i++) v[i] = (l.active >> i & 1) ? l[i] : id;
  for (uint w = 16; w; w >>= 1) for (uint i = 0; i < w; i++) v[i] = f(v[i], v[i + w]);
  return v[0];
}
template <class T> MSL_INL T simd_sum(T x, MSL_LINE) { return msl_reduce(x, (T)0, line, [](T a, T b) { return (T)(a + b); }); }
template <class T> MSL_INL T simd_product(T x, MSL_LINE) { return msl_reduce(x, (T)1, line, [](T a, T b) { return (T)(a * b); }); }
template <class T> MSL_INL T simd_max(T x, MSL_LINE) { return msl_reduce(x, x, line, [](T a, T b) { return max(a, b); }); }
template <class T> MSL_INL T simd_min(T x, MSL_LINE) { return msl_reduce(x, x, line, [](T a, T b) { return min(a, b); }); }
template <class T> MSL_INL T simd_and(T x, MSL_LINE) { return msl_reduce(x, x, line, [](T a, T b) { return (T)(a & b); }); }
template <class T> MSL_INL T simd_or(T x, MSL_LINE) { return msl_reduce(x, x, line, [](T a, T b) { return (T)(a | b); }); }
template <class T> MSL_INL T simd_xor(T x, MSL_LINE) { return msl_reduce(x, (T)0, line, [](T a, T b) { return (T)(a ^ b); }); }
template <class T> MSL_INL T simd_shuffle(T x, ushort lane, MSL_LINE) { return msl_xchg(x, line)[lane]; }
template <class T> MSL_INL T simd_broadcast(T x, ushort lane, MSL_LINE) { return msl_xchg(x, line)[lane]; }
template <class T> MSL_INL T simd_broadcast_first(T x, MSL_LINE) { auto l = msl_xchg(x, line); return l[__builtin_ctzl(l.active)]; }
template <class T> MSL_INL T simd_shuffle_xor(T x, ushort m, MSL_LINE) { return msl_xchg(x, line)[msl_rt_lane() ^ m]; }
template <class T> MSL_INL T simd_shuffle_down(T x, ushort d, MSL_LINE) { auto l = msl_xchg(x, line); uint i = msl_rt_lane() + d; return i < 32 ? l[i] : x; }
template <class T> MSL_INL T simd_shuffle_up(T x, ushort d, MSL_LINE) { auto l = msl_xchg(x, line); uint i = msl_rt_lane(); return i >= d ? l[i - d] : x; }
template <class T> MSL_INL T simd_prefix_inclusive_sum(T x, MSL_LINE) { auto l = msl_xchg(x, line); T s = 0; for (uint i = 0; i <= msl_rt_lane(); i++) if (l.active >> i & 1) s += l[i]; return s; }
template <class T> MSL_INL T simd_prefix_exclusive_sum(T x, MSL_LINE) { auto l = msl_xchg(x, line); T s = 0; for (uint i = 0; i < msl_rt_lane(); i++) if (l.active >> i & 1) s += l[i]; return s; }
MSL_INL bool simd_any(bool x, MSL_LINE) { return msl_reduce((int)x, 0, line, [](int a, int b) { return a | b; }); }
MSL_INL bool simd_all(bool x, MSL_LINE) { return msl_reduce((int)x, 1, line, [](int a, int b) { return a & b; }); }
struct simd_vote { ulong v; explicit operator ulong() const { return v; } bool any() const { return v; } typedef ulong vote_t; };
MSL_INL simd_vote simd_ballot(bool x, MSL_LINE) { auto l = msl_xchg((int)x, line); ulong r = 0; for (uint i = 0; i < 32; i++) if ((l.active >> i & 1) && l[i]) r |= 1ul << i; return simd_vote{r}; }
template <class T> MSL_INL T quad_shuffle_xor(T x, ushort m, MSL_LINE) { return msl_xchg(x, line)[msl_rt_lane() ^ (m & 3)]; }
template <class T> MSL_INL T quad_sum(T x, MSL_LINE) { auto l = msl_xchg(x, line); uint b = msl_rt_lane() & ~3u; return (l[b] + l[b + 2]) + (l[b + 1] + l[b + 3]); }

// ---- simdgroup_matrix: 64 elements over 32 lanes, two a lane, in the layout seen on Apple GPUs -------
template <class T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "only 8x8");
  vec<T, 2> e_;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T v) { e_ = (vec<T, 2>)v; }
  vec<T, 2> &thread_elements() { return e_; }
  const vec<T, 2> &thread_elements() const { return e_; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8; typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8; typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
MSL_INL uint msl_mrow(uint l) { return ((l >> 2) & 4) | ((l >> 1) & 3); }                 // lane -> row
MSL_INL uint msl_mcol(uint l) { return ((l >> 1) & 4) | ((l & 1) << 1); }                 // lane -> first of its two columns
MSL_INL uint msl_mlane(uint r, uint c) { return ((r & 4) << 2) | ((r & 3) << 1) | ((c & 4) << 1) | ((c >> 1) & 1); }
template <class T, int R, int C = R> MSL_INL simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) { return simdgroup_matrix<T, R, C>(v); }
template <class T> MSL_INL simdgroup_matrix<T, 8, 8> make_diagonal_simdgroup_matrix(T v) { simdgroup_matrix<T, 8, 8> m; uint l = msl_rt_lane(), r = msl_mrow(l), c = msl_mcol(l); m.e_[0] = r == c ? v : (T)0; m.e_[1] = r == c + 1 ? v : (T)0; return m; }
template <class T, class P> MSL_INL void msl_simdgroup_load(simdgroup_matrix<T, 8, 8> &m, P src, ulong ld, ulong2 o, bool tr) {
  uint l = msl_rt_lane(), r = msl_mrow(l), c = msl_mcol(l);
  for (uint i = 0; i < 2; i++) m.e_[i] = tr ? src[(o.y + c + i) * ld + o.x + r] : src[(o.y + r) * ld + o.x + c + i];
}
template <class T, class P> MSL_INL void msl_simdgroup_store(simdgroup_matrix<T, 8, 8> m, P dst, ulong ld, ulong2 o, bool tr) {
  uint l = msl_rt_lane(), r = msl_mrow(l), c = msl_mcol(l);
  for (uint i = 0; i < 2; i++) (tr ? dst[(o.y + c + i) * ld + o.x + r] : dst[(o.y + r) * ld + o.x + c + i]) = m.e_[i];
}
#define MSL_NO_ORIGIN ulong2{0, 0}
#define X(AS) \
  template <class T> MSL_INL void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, const AS T *src, ulong ld = 8, ulong2 o = MSL_NO_ORIGIN, bool tr = false) { msl_simdgroup_load(m, src, ld, o, tr); } \
  template <class T> MSL_INL void simdgroup_store(simdgroup_matrix<T, 8, 8> m, AS T *dst, ulong ld = 8, ulong2 o = MSL_NO_ORIGIN, bool tr = false) { msl_simdgroup_store(m, dst, ld, o, tr); }
X(device)
#if MSL_SPACES
X(threadgroup)
#endif
#undef X
template <class D, class A, class B, class C> MSL_INL void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c, MSL_LINE) {
  struct P { vec<A, 2> a; vec<B, 2> b; } mine{a.e_, b.e_};
  auto l = msl_xchg_any(mine, line); uint me = msl_rt_lane(), row = msl_mrow(me), col = msl_mcol(me);
  float s0 = (float)c.e_[0], s1 = (float)c.e_[1];
  for (uint k = 0; k < 8; k++) {
    float av = (float)l[msl_mlane(row, k)].a[k & 1]; P bp = l[msl_mlane(k, col)];
    s0 = __builtin_fmaf(av, (float)bp.b[0], s0); s1 = __builtin_fmaf(av, (float)bp.b[1], s1);
  }
  d.e_[0] = (D)s0; d.e_[1] = (D)s1;
}
template <class D, class A, class B> MSL_INL void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, MSL_LINE) { simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<D, 8, 8>((D)0), line); }

// ---- atomics -----------------------------------------------------------------------------------------
template <class T> struct atomic { T v; };
typedef atomic<int> atomic_int; typedef atomic<uint> atomic_uint; typedef atomic<float> atomic_float; typedef atomic<bool> atomic_bool; typedef atomic<ulong> atomic_ulong;
#if MSL_CHECK
} // namespace metal
extern "C" void msl_rt_atomic(int on);
namespace metal {
struct msl_atomic_guard { msl_atomic_guard() { msl_rt_atomic(1); } ~msl_atomic_guard() { msl_rt_atomic(0); } };
#define MSL_AT msl_atomic_guard g_;
#else
#define MSL_AT
#endif
// one CPU thread runs a threadgroup, so plain operations are atomic here
#define MSL_ATOMICS(AS) \
  template <class T> MSL_INL T atomic_load_explicit(const volatile AS atomic<T> *p, memory_order) { MSL_AT return p->v; } \
  template <class T, class U> MSL_INL void atomic_store_explicit(volatile AS atomic<T> *p, U x, memory_order) { MSL_AT T t = (T)x; p->v = t; } \
  template <class T, class U> MSL_INL T atomic_fetch_add_explicit(volatile AS atomic<T> *p, U x, memory_order) { MSL_ATOMIC_OK(1) MSL_AT T o = p->v; p->v = o + (T)x; return o; } \
  template <class T, class U> MSL_INL T atomic_fetch_sub_explicit(volatile AS atomic<T> *p, U x, memory_order) { MSL_AT T o = p->v; p->v = o - (T)x; return o; } \
  template <class T, class U> MSL_INL T atomic_fetch_or_explicit(volatile AS atomic<T> *p, U x, memory_order) { MSL_AT T o = p->v; p->v = o | (T)x; return o; } \
  template <class T, class U> MSL_INL T atomic_fetch_xor_explicit(volatile AS atomic<T> *p, U x, memory_order) { MSL_AT T o = p->v; p->v = o ^ (T)x; return o; } \
  template <class T, class U> MSL_INL T atomic_fetch_and_explicit(volatile AS atomic<T> *p, U x, memory_order) { MSL_AT T o = p->v; p->v = o & (T)x; return o; } \
  template <class T, class U> MSL_INL T atomic_fetch_max_explicit(volatile AS atomic<T> *p, U x, memory_order) { MSL_AT T o = p->v; if ((T)x > o) p->v = (T)x; return o; } \
  template <class T, class U> MSL_INL T atomic_fetch_min_explicit(volatile AS atomic<T> *p, U x, memory_order) { MSL_AT T o = p->v; if ((T)x < o) p->v = (T)x; return o; } \
  template <class T, class U> MSL_INL T atomic_exchange_explicit(volatile AS atomic<T> *p, U x, memory_order) { MSL_AT T o = p->v; p->v = (T)x; return o; } \
  template <class T> MSL_INL bool atomic_compare_exchange_weak_explicit(volatile AS atomic<T> *p, T *e, T x, memory_order, memory_order) { MSL_AT T o = p->v; if (o == *e) { p->v = x; return true; } *e = o; return false; }
#if !MSL_SPACES
#define MSL_ATOMIC_OK(AS_)
#else
#define MSL_ATOMIC_OK(AS_) static_assert(AS_ == 1 || !is_floating_point_v<T>, "atomic_float works in device memory only");
#endif
MSL_ATOMICS(device)
#if MSL_SPACES
#undef MSL_ATOMIC_OK
#define MSL_ATOMIC_OK(AS_) static_assert(!is_floating_point_v<T>, "atomic_float works in device memory only");
MSL_ATOMICS(threadgroup)
#endif

// ---- packed vectors -----------------------------------------------------------------------------------
template <class T, int N> struct packed_vec;
#define MSL_PACKED(N, ...) template <class T> struct packed_vec<T, N> { \
  T __VA_ARGS__; \
  packed_vec() = default; \
  packed_vec(vec<T, N> v) { for (int i = 0; i < N; i++) (&x)[i] = v[i]; } \
  operator vec<T, N>() const { vec<T, N> v; for (int i = 0; i < N; i++) v[i] = (&x)[i]; return v; } \
  T &operator[](int i) { return (&x)[i]; } \
  const T &operator[](int i) const { return (&x)[i]; } };
MSL_PACKED(2, x, y) MSL_PACKED(3, x, y, z) MSL_PACKED(4, x, y, z, w)
#define X(T) typedef packed_vec<T, 2> packed_##T##2; typedef packed_vec<T, 3> packed_##T##3; typedef packed_vec<T, 4> packed_##T##4;
X(float) X(half) X(int) X(uint) X(short) X(ushort) X(char) X(uchar)
#undef X
} // namespace metal

namespace metal {
#if MSL_SPACES
template <class T, size_t N> using array = T[N]; // plain C++ has no address-space-qualified methods
#else
template <class T, size_t N> struct array { T e[N]; T &operator[](size_t i) { return e[i]; } const T &operator[](size_t i) const { return e[i]; } size_t size() const { return N; } };
#endif
template <class T> struct vec_elements { static constexpr int value = vtraits<T>::n; };
template <class T, int C, int R> struct matrix { // columns of vectors
  vec<T, R> c[C];
  matrix() = default;
  explicit matrix(T v) { for (int i = 0; i < C; i++) for (int j = 0; j < R; j++) c[i][j] = i == j ? v : (T)0; }
  matrix(vec<T, R> a, vec<T, R> b) : c{a, b} {}
  matrix(vec<T, R> a, vec<T, R> b, vec<T, R> d) : c{a, b, d} {}
  matrix(vec<T, R> a, vec<T, R> b, vec<T, R> d, vec<T, R> e) : c{a, b, d, e} {}
  template <class U> explicit matrix(matrix<U, C, R> o) { for (int i = 0; i < C; i++) c[i] = msl_make<vec<T, R>>(o.c[i]); }
  vec<T, R> &operator[](int i) { return c[i]; }
  const vec<T, R> &operator[](int i) const { return c[i]; }
};
template <class T, int C, int R> MSL_INL vec<T, R> operator*(matrix<T, C, R> m, vec<T, C> v) { vec<T, R> r = m.c[0] * v[0]; for (int i = 1; i < C; i++) r += m.c[i] * v[i]; return r; }
template <class T, int C, int R> MSL_INL vec<T, C> operator*(vec<T, R> v, matrix<T, C, R> m) { vec<T, C> r; for (int i = 0; i < C; i++) { T s = 0; for (int j = 0; j < R; j++) s += v[j] * m.c[i][j]; r[i] = s; } return r; }
template <class T, int C, int R> MSL_INL matrix<T, C, R> operator*(matrix<T, C, R> m, T s) { for (int i = 0; i < C; i++) m.c[i] *= s; return m; }
#define X(T) typedef matrix<T, 2, 2> T##2x2; typedef matrix<T, 3, 3> T##3x3; typedef matrix<T, 4, 4> T##4x4; typedef matrix<T, 2, 4> T##2x4; typedef matrix<T, 4, 2> T##4x2;
X(float) X(half)
#undef X
} // namespace metal
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define MAXFLOAT 3.40282347e+38f
#define FLT_MAX 3.40282347e+38f
#define FLT_MIN 1.17549435e-38f
#define FLT_EPSILON 1.1920929e-7f
#define HALF_MAX ((half)65504.0f)
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define M_PI_F 3.14159265358979323846f
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f

// ---- entries: a parameter's own type picks the conversion of its argument ----------------------------
#include "abi.h"
namespace msl_rt {
struct Ptr { void *p; template <class T> operator T *() const { return (T *)(ulong)p; } };
struct Ref { void *p; template <class T> operator T &() const { return *(T *)(ulong)p; } };
struct Pos {
  V3 v;
  operator uint() const { return v.x; } operator ushort() const { return (ushort)v.x; } operator int() const { return (int)v.x; }
  operator uint2() const { return uint2{v.x, v.y}; } operator uint3() const { return uint3{v.x, v.y, v.z}; }
  operator ushort2() const { return ushort2{(ushort)v.x, (ushort)v.y}; } operator ushort3() const { return ushort3{(ushort)v.x, (ushort)v.y, (ushort)v.z}; }
};
} // namespace msl_rt
extern "C" const char __ehdr_start __attribute__((visibility("hidden")));
extern "C" const char _end __attribute__((visibility("hidden")));
