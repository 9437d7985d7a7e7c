/* Times ONNX Runtime's C interface with one thread: onnxruntime_c LIBRARY MODEL RUNS [INPUT:EXTENT,EXTENT...]... -- OUTPUT...
 *
 * Inputs are float32. Prints the least and the median wall time of a run, and the CPU time of all, in milliseconds. The
 * places of functions in OrtApi never change, says onnxruntime_c_api.h: those that are needed are named here. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MESSAGE = 2, ENVIRONMENT, SESSION = 7, RUN = 9, OPTIONS, OPTIMIZE = 23, THREADS, TENSOR = 49, CPU_MEMORY = 69 };
enum { VERSION = 14, WARNING = 2, ALL = 99, FLOAT = 1, ARENA = 1, MOST = 16 };

typedef void *(*function)();
static void **api;

static void check(void *status) {
    if (!status) return;
    fprintf(stderr, "error: %s\n", ((const char *(*)(void *))api[MESSAGE])(status));
    exit(1);
}

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **arguments) {
    void *environment, *options, *session, *memory, *inputs[MOST], *outputs[MOST];
    const char *given[MOST], *wanted[MOST];
    size_t given_count = 0, wanted_count = 0;
    if (count < 5) return 2;
    void *library = dlopen(arguments[1], RTLD_NOW);
    if (!library) return fprintf(stderr, "error: %s\n", dlerror()), 1;
    void *(**base)(uint32_t) = ((void *(**(*)(void))(uint32_t))dlsym(library, "OrtGetApiBase"))();
    api = base[0](VERSION);
    check(((function)api[ENVIRONMENT])(WARNING, "forge", &environment));
    check(((function)api[OPTIONS])(&options));
    check(((function)api[OPTIMIZE])(options, ALL));
    check(((function)api[THREADS])(options, 1));
    check(((function)api[SESSION])(environment, arguments[2], options, &session));
    check(((function)api[CPU_MEMORY])(ARENA, 0, &memory));
    int at = 4;
    for (; at < count && strcmp(arguments[at], "--") && given_count < MOST; at++) {
        int64_t shape[MOST], size = 1;
        size_t rank = 0;
        char *extents = strrchr(arguments[at], ':');
        if (!extents) return 2;
        *extents++ = 0;
        for (char *part = strtok(extents, ","); part && rank < MOST; part = strtok(NULL, ",")) size *= shape[rank++] = atoll(part);
        float *data = aligned_alloc(64, ((size_t)size * 4 + 63) / 64 * 64);
        for (int64_t i = 0; i < size; i++) data[i] = (float)rand() / (float)RAND_MAX;
        given[given_count] = arguments[at];
        check(((function)api[TENSOR])(memory, data, (size_t)size * 4, shape, rank, FLOAT, &inputs[given_count++]));
    }
    for (at++; at < count && wanted_count < MOST; at++) wanted[wanted_count++] = arguments[at];
    memset(outputs, 0, sizeof outputs); /* made by the first run, and used again */
    int runs = atoi(arguments[3]);
    double *times = malloc(sizeof *times * (size_t)runs), start = 0;
    for (int run = -20; run < runs; run++) {
        if (run == 0) start = now(CLOCK_PROCESS_CPUTIME_ID);
        double begin = now(CLOCK_MONOTONIC);
        check(((function)api[RUN])(session, NULL, given, (void *const *)inputs, given_count, wanted, wanted_count, outputs));
        if (run >= 0) times[run] = now(CLOCK_MONOTONIC) - begin;
    }
    double cpu = (now(CLOCK_PROCESS_CPUTIME_ID) - start) / runs;
    qsort(times, (size_t)runs, sizeof *times, ascending);
    printf("least %.4f median %.4f CPU %.4f\n", times[0], times[runs / 2], cpu);
    return 0;
}
