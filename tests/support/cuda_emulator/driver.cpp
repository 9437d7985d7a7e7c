// NVIDIA's driver and runtime on a CPU, as far as TVM's runtime calls them: a GPU's memory is this process's, a stream
// has nothing left to do when a call returns, and a module is a shared object of kernels (compile.py).
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {
struct Dim3 {
  unsigned x, y, z;
};
using Launch = void (*)(Dim3, Dim3, void**);
struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
};
struct Function {
  Launch launch;
  unsigned parameters;
};
constexpr unsigned MOST = 64;  // parameters of a kernel
// A launch that waits in a graph: arguments are 8 bytes each, as TVM's runtime packs them.
struct Launched {
  const Function* function;
  Dim3 grid, block;
  uint64_t values[MOST];
  Launched* next;
};
struct Graph {
  Launched *first, **last;
};
Graph* recorded = nullptr;  // what a stream captures
constexpr int REFUSED = 999;
enum Attribute { MOST_THREADS = 1, SHARED = 8, WARP = 10, REGISTERS = 12, CLOCK = 13, PROCESSORS = 16, MAJOR = 75, MINOR = 76 };
}  // namespace

extern "C" {
// The length of a module is in its ELF header: sections come last.
int cuModuleLoadData(void** module, const void* image) {
  const auto* bytes = static_cast<const unsigned char*>(image);
  uint64_t sections;
  uint16_t size, count;
  memcpy(&sections, bytes + 0x28, 8), memcpy(&size, bytes + 0x3a, 2), memcpy(&count, bytes + 0x3c, 2);
  size_t length = sections + size_t(size) * count, written = 0;
  int file = memfd_create("kernels", 0);
  while (file >= 0 && written < length) {
    ssize_t now = write(file, bytes + written, length - written);
    if (now <= 0) return REFUSED;
    written += size_t(now);
  }
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (*module == nullptr) fprintf(stderr, "emulated CUDA: %s\n", dlerror());
  return *module == nullptr ? REFUSED : 0;
}
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  char symbol[512];
  snprintf(symbol, sizeof symbol, "%s_launch", name);
  auto launch = reinterpret_cast<Launch>(dlsym(module, symbol));
  snprintf(symbol, sizeof symbol, "%s_parameters", name);
  auto parameters = static_cast<const unsigned*>(dlsym(module, symbol));
  if (launch == nullptr || parameters == nullptr || *parameters > MOST) return REFUSED;
  auto found = static_cast<Function*>(malloc(sizeof(Function)));
  *found = {launch, *parameters};
  return *function = found, 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernelEx(const Config* config, const Function* function, void** given, void**) {
  const auto& [grid, block, shared, stream] = *config;
  Dim3 blocks{grid[0], grid[1], grid[2]}, threads{block[0], block[1], block[2]};
  if (recorded == nullptr) return function->launch(blocks, threads, given), 0;
  auto* launched = static_cast<Launched*>(calloc(1, sizeof(Launched)));
  launched->function = function, launched->grid = blocks, launched->block = threads;
  for (unsigned i = 0; i < function->parameters; ++i) memcpy(&launched->values[i], given[i], 8);
  *recorded->last = launched, recorded->last = &launched->next;
  return 0;
}
int cuTensorMapEncodeTiled() { return REFUSED; }
int cuDeviceGetName(char* name, int length, int) { return snprintf(name, size_t(length), "emulated"), 0; }
int cuGetErrorName(int, const char** text) { return *text = "refused", 0; }
int cuGetErrorString(int, const char** text) { return *text = "not emulated", 0; }

// Memory is no numbers at first, so that what nobody wrote shows.
int cudaMalloc(void** place, size_t size) {
  size_t whole = (size + 255) / 256 * 256 + 256;
  *place = aligned_alloc(256, whole);
  return *place == nullptr ? REFUSED : (memset(*place, 0xff, whole), 0);
}
int cudaMallocHost(void** place, size_t size) { return cudaMalloc(place, size); }
int cudaFree(void* place) { return free(place), 0; }
int cudaFreeHost(void* place) { return free(place), 0; }
int cudaMemcpyAsync(void* to, const void* from, size_t size, int, void*) { return memmove(to, from, size), 0; }
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, void*) {
  return memmove(to, from, size), 0;
}
int cudaMemGetInfo(size_t* left, size_t* all) { return *left = *all = size_t(1) << 33, 0; }
int cudaGetDeviceCount(int* count) { return *count = 1, 0; }
int cudaGetDevice(int* device) { return *device = 0, 0; }
int cudaSetDevice(int) { return 0; }
int cudaGetDeviceProperties(void*, int) { return REFUSED; }
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case MOST_THREADS: *value = 1024; break;
    case SHARED: *value = 48 << 10; break;
    case WARP: *value = 32; break;
    case REGISTERS: *value = 65536; break;
    case CLOCK: *value = 1000000; break;
    case PROCESSORS: *value = 1; break;
    case MAJOR: *value = 9; break;
    default: *value = 0;
  }
  return 0;
}
const char* cudaGetErrorName(int) { return "refused"; }
const char* cudaGetErrorString(int) { return "not emulated"; }
int cudaGetLastError() { return 0; }
int cudaPeekAtLastError() { return 0; }
int cudaEventCreate(void** event) { return *event = nullptr, 0; }
int cudaEventDestroy(void*) { return 0; }
int cudaEventRecord(void*, void*) { return 0; }
int cudaEventSynchronize(void*) { return 0; }
int cudaEventElapsedTime(float* milliseconds, void*, void*) { return *milliseconds = 0, 0; }
int cudaStreamCreate(void** stream) { return *stream = nullptr, 0; }
int cudaStreamCreateWithFlags(void** stream, unsigned) { return *stream = nullptr, 0; }
int cudaStreamDestroy(void*) { return 0; }
int cudaStreamSynchronize(void*) { return 0; }
int cudaStreamWaitEvent(void*, void*, unsigned) { return 0; }
int cudaStreamBeginCapture(void*, int) {
  recorded = static_cast<Graph*>(calloc(1, sizeof(Graph)));
  return recorded->last = &recorded->first, 0;
}
int cudaStreamEndCapture(void*, Graph** graph) { return *graph = recorded, recorded = nullptr, 0; }
int cudaGraphInstantiate(Graph** runs, Graph* graph) { return *runs = graph, 0; }
int cudaGraphLaunch(Graph* graph, void*) {
  for (Launched* launched = graph->first; launched != nullptr; launched = launched->next) {
    void* given[MOST];
    for (unsigned i = 0; i < MOST; ++i) given[i] = &launched->values[i];
    launched->function->launch(launched->grid, launched->block, given);
  }
  return 0;
}
int cudaGraphDestroy(void*) { return 0; }
int cudaGraphExecDestroy(void*) { return 0; }
}
