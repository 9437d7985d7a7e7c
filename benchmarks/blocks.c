/* Runs a kernel of which only control flow is left (benchmarks/blocks.py), and prints how often its blocks ran.

   Memory is a large area of zeros: addresses that a kernel computes from its arguments, before or behind, are in it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

#define AREA (1ul << 32)
#define PAGE 4096ul

extern uint64_t forge_counters[], forge_counters_end[];
static uint64_t copies, copied;
static char *top;

static void *zeros(void) { return mmap(0, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); }

struct environment { void *handle; int32_t tasks; };
static int launch(int (*task)(int, struct environment *, void *), void *data, int tasks) {
  struct environment one = {0, 1};
  (void)tasks;
  return task(0, &one, data);
}
static void *allocate(int type, int id, uint64_t bytes, int code, int bits) {
  char *start = top;
  (void)type, (void)id, (void)code, (void)bits;
  top += (bytes + PAGE - 1) & ~(PAGE - 1);
  return start;
}
static int release(int type, int id, void *memory) { return (void)type, (void)id, (void)memory, 0; }

void *__TVMBackendParallelLaunch = launch;
void *__TVMBackendAllocWorkspace = allocate;
void *__TVMBackendFreeWorkspace = release;
void *forge_copy(void *to, const void *from, uint64_t bytes) { return (void)from, copies++, copied += bytes, to; }
void *forge_fill(void *to, int value, uint64_t bytes) { return (void)value, copies++, copied += bytes, to; }

typedef int (*kernel)(void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *);

int main(int count, char **arguments) {
  kernel run = count == 2 ? (kernel)dlsym(RTLD_DEFAULT, arguments[1]) : 0;
  char *at = zeros();
  top = zeros();
  if (!run || at == MAP_FAILED || top == MAP_FAILED) return 2;
  at += AREA / 2;
  run(at, at, at, at, at, at, at, at, at, at, at, at);
  for (uint64_t *counter = forge_counters; counter < forge_counters_end; counter++)
    if (*counter) printf("%ld %lu\n", (long)(counter - forge_counters), *counter);
  printf("copies %lu %lu\n", copies, copied);
  return 0;
}
