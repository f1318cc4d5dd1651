// How a kernel declares its arguments. The crate's `build/` reads the declarations of all texts, and makes of each the
// structure that a launch fills in. The first argument of a form is the number of the kernel's argument.
//   IN, OUT: memory that is read, or written too.
//   EARLY: memory that is read before the launch before has ended, which must not have written it.
//   VAL: a number, uint or float.
//   MAP, EARLY_MAP: a matrix for the copy engine.
//   FAULT: the fault record.
//   COUNT: a number that may be known only when the kernel runs, with the step block that it is read from: four arguments.
//          COUNTED gives the number.
//   EXTENT: another size of the same step block: two arguments. ACTUAL gives it.
//   HOST(names…): structures and numbers of the text that the host needs too.
#ifndef ARGUMENTS
#define ARGUMENTS
#ifdef __CUDACC_RTC__
#define KERNEL(name, threads, ...) extern "C" __global__ __launch_bounds__(threads) void name(__VA_ARGS__)
// Registers few enough for two workgroups on a multiprocessor.
#define KERNEL_IN_PAIRS(name, threads, ...) extern "C" __global__ __launch_bounds__(threads, 2) void name(__VA_ARGS__)
// As many registers as the workgroup can have, however few of them then share a multiprocessor.
#define KERNEL_ALONE(name, threads, ...) extern "C" __global__ __launch_bounds__(threads, 1) void name(__VA_ARGS__)
// Shared memory sized by the launch, whose bytes DYNAMIC_SHARED declares. `groups`: how many workgroups should fit on a
// core.
#define KERNEL_SHARED(name, threads, groups, ...) extern "C" __global__ __launch_bounds__(threads, groups) void name(__VA_ARGS__)
// Arguments point to memory of their own, unless a text says otherwise before it comes here.
#ifdef ARGUMENTS_OVERLAP
#define APART
#else
#define APART __restrict__
#endif
#define IN(i, T, n) const T *APART n
#define OUT(i, T, n) T *APART n
#define VAL(i, T, n) const T n
#define MAP(i, n) const __grid_constant__ TensorMap n
#else
#define POSITIONS uint3 GROUP [[threadgroup_position_in_grid]], uint3 LOCAL [[thread_position_in_threadgroup]], uint3 LOCAL_SIZE [[threads_per_threadgroup]], \
  uint TID [[thread_index_in_threadgroup]], uint LANE [[thread_index_in_simdgroup]], uint SIMD [[simdgroup_index_in_threadgroup]], uint NSIMD [[simdgroups_per_threadgroup]]
// A text is compiled for the kernels that are used: with ONLY, the others, whose WANT_name is not defined (as `~,`), are templates without an
// instance, which cost little more than their parsing.
#ifdef ONLY
#define WANTED_SECOND(a, b, ...) b
#define WANTED_OF(...) WANTED_SECOND(__VA_ARGS__)
#define WANTED(name) WANTED_OF(WANT_##name, template <uint>, )
#else
#define WANTED(name)
#endif
#define KERNEL(name, threads, ...) WANTED(name) [[kernel, max_total_threads_per_threadgroup(threads)]] void name(__VA_ARGS__, POSITIONS)
#define KERNEL_ALONE(name, threads, ...) KERNEL(name, threads, __VA_ARGS__)
#define KERNEL_IN_PAIRS(name, threads, ...) KERNEL(name, threads, __VA_ARGS__)
#define KERNEL_SHARED(name, threads, groups, ...) KERNEL(name, threads, __VA_ARGS__, threadgroup uchar *shared_bytes [[threadgroup(0)]])
#define IN(i, T, n) device const T *n [[buffer(i)]]
#define OUT(i, T, n) device T *n [[buffer(i)]]
#define VAL(i, T, n) constant T &n [[buffer(i)]]
#endif
#define EARLY(i, T, n) IN(i, T, n)
#define EARLY_MAP(i, n) MAP(i, n)
#define FAULT(i) OUT(i, uint, fault)
// Word `slot` of the step block, or `most` where the slot is ~0; of a count times `per`.
#define EXTENT(i, name) VAL(i, uint, name##_slot), VAL(i + 1, uint, name##_most)
#define ACTUAL(name) (name##_slot == ~0u ? name##_most : min(step[name##_slot], name##_most))
#define COUNT(i, name) IN(i, uint, step), VAL(i + 1, uint, name##_slot), VAL(i + 2, uint, name##_most), VAL(i + 3, uint, name##_per)
#define COUNTED(name) (ACTUAL(name) * name##_per)
#define HOST(...)
#endif
