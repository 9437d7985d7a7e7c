// What CUDA's kernels find in its headers, on a CPU: the threads of a block take turns, one block after the other.
//
// A thread runs until it waits: for its block (__syncthreads) or for its warp (shuffles). Those that wait go on when all
// of the block, or of the warp, that have not ended wait there too. With EMULATED_BACKWARDS in the environment, blocks
// and threads run last to first: numbers that then differ are a race. Shared memory is static, since one block runs at a time.
#pragma once
#include <ucontext.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define alignas(bytes) __attribute__((aligned(bytes)))

struct dim3 {
  unsigned x, y, z;
};
#define VECTORS(type, name)      \
  struct name##2 { type x, y; }; \
  struct name##3 { type x, y, z; }; \
  struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; }; \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
VECTORS(float, float)
VECTORS(int, int)
VECTORS(unsigned, uint)
VECTORS(unsigned char, uchar)
VECTORS(signed char, char)
VECTORS(short, short)
VECTORS(unsigned short, ushort)
VECTORS(long long, longlong)
VECTORS(double, double)

namespace emulated {
enum Waits { NONE, BLOCK, WARP, ENDED };
constexpr unsigned MOST = 1024, STACK = 64 << 10, LANES = 32;

struct Thread {
  ucontext_t context;
  dim3 index;
  unsigned number;
  Waits waits;
};
static Thread threads[MOST];
static char* stacks;
static unsigned count;
static bool backwards;
static Thread* current;
static ucontext_t scheduler;
static dim3 block_index, block_extent, grid_extent;
static void (*kernel)(void**);
static void** given;
static uint64_t exchanged[MOST];

static void wait(Waits what) {
  current->waits = what;
  swapcontext(&current->context, &scheduler);
}

static void started() {
  kernel(given);
  wait(ENDED);
}

// Let those of threads first to last - 1 go on that wait for `what`, if all do or have ended; return whether any does.
static bool released(unsigned first, unsigned last, Waits what) {
  unsigned waiting = 0, ended = 0;
  for (unsigned i = first; i < last; ++i) waiting += threads[i].waits == what, ended += threads[i].waits == ENDED;
  if (waiting == 0 || waiting + ended < last - first) return false;
  for (unsigned i = first; i < last; ++i)
    if (threads[i].waits == what) threads[i].waits = NONE;
  return true;
}

static void run_block() {
  for (unsigned i = 0; i < count; ++i) {
    getcontext(&threads[i].context);
    threads[i].waits = NONE;
    threads[i].context.uc_stack.ss_sp = stacks + size_t(i) * STACK;
    threads[i].context.uc_stack.ss_size = STACK;
    threads[i].context.uc_link = nullptr;
    makecontext(&threads[i].context, started, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (unsigned turn = 0; turn < count; ++turn) {
      unsigned i = backwards ? count - 1 - turn : turn;
      if (threads[i].waits != NONE) continue;
      current = &threads[i], any = true;
      swapcontext(&scheduler, &threads[i].context);
    }
    for (unsigned i = 0; i < count; i += LANES) any |= released(i, i + LANES < count ? i + LANES : count, WARP);
    any |= released(0, count, BLOCK);
  }
  for (unsigned i = 0; i < count; ++i)
    if (threads[i].waits != ENDED) {
      fputs("emulated CUDA: threads of a block wait at different places\n", stderr);
      abort();
    }
}

static void launch(dim3 grid, dim3 block, void (*body)(void**), void** arguments) {
  count = block.x * block.y * block.z;
  if (count == 0 || count > MOST || grid.x == 0 || grid.y == 0 || grid.z == 0) abort();
  if (stacks == nullptr) stacks = static_cast<char*>(malloc(size_t(MOST) * STACK));
  kernel = body, given = arguments, block_extent = block, grid_extent = grid;
  for (unsigned i = 0; i < count; ++i) {
    threads[i].number = i;
    threads[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
  }
  backwards = getenv("EMULATED_BACKWARDS") != nullptr;
  unsigned blocks = grid.x * grid.y * grid.z;
  for (unsigned turn = 0; turn < blocks; ++turn) {
    unsigned i = backwards ? blocks - 1 - turn : turn;
    block_index = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    run_block();
  }
}

template <typename T>
T shuffled(T value, unsigned lane, bool is_within) {
  static_assert(sizeof(T) <= 8);
  memcpy(&exchanged[current->number], &value, sizeof(T));
  wait(WARP);
  T found = value;
  if (is_within) memcpy(&found, &exchanged[current->number / LANES * LANES + lane], sizeof(T));
  wait(WARP);
  return found;
}
static unsigned lane() { return current->number % LANES; }
}  // namespace emulated

#define threadIdx (emulated::current->index)
#define blockIdx emulated::block_index
#define blockDim emulated::block_extent
#define gridDim emulated::grid_extent

static void __syncthreads() { emulated::wait(emulated::BLOCK); }
static void __syncwarp(unsigned = ~0u) { emulated::wait(emulated::WARP); }
inline unsigned __activemask() { return ~0u; }
template <typename T>
T __shfl_sync(unsigned, T value, int source, int width = 32) {
  return emulated::shuffled(value, emulated::lane() / width * width + source % width, true);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned by, int width = 32) {
  unsigned lane = emulated::lane();
  return emulated::shuffled(value, lane + by, lane % width + by < unsigned(width));
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned by, int width = 32) {
  unsigned lane = emulated::lane();
  return emulated::shuffled(value, lane - by, lane % width >= by);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return emulated::shuffled(value, emulated::lane() ^ mask, true);
}

template <typename A, typename B>
auto max(A a, B b) { return a > b ? a : b; }
template <typename A, typename B>
auto min(A a, B b) { return a < b ? a : b; }
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __int_as_float(int bits) { float value; memcpy(&value, &bits, 4); return value; }
inline int __float_as_int(float value) { int bits; memcpy(&bits, &value, 4); return bits; }
#define __restrict__ __restrict
