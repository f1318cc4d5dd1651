// The short words of kernels' texts that are CUDA's alone.
#pragma once
typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned long long ulong;
#define FN static __forceinline__
FN uint shared_address(const void *p) { return (uint)__cvta_generic_to_shared(p); }
