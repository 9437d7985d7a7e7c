// Halves of CUDA: arithmetic rounds to a half after each operation, as a GPU does.
#pragma once
typedef _Float16 half;
typedef _Float16 __half;
struct half2 {
  half x, y;
};
inline half2 make_half2(half x, half y) { return {x, y}; }
using __half2 = half2;
inline float __half2float(half x) { return float(x); }
inline half __float2half(float x) { return half(x); }
inline half __float2half_rn(float x) { return half(x); }
inline half __hmul(half a, half b) { return a * b; }
inline half __hadd(half a, half b) { return a + b; }
inline half __hsub(half a, half b) { return a - b; }
inline bool __hlt(half a, half b) { return a < b; }
inline bool __hgt(half a, half b) { return a > b; }
inline half __hmax(half a, half b) { return a > b ? a : b; }
inline half __hmin(half a, half b) { return a < b ? a : b; }
inline half hexp(half x) { return half(expf(float(x))); }
inline half hlog(half x) { return half(logf(float(x))); }
inline half hsqrt(half x) { return half(sqrtf(float(x))); }
inline half hrsqrt(half x) { return half(1 / sqrtf(float(x))); }
