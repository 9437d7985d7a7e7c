// What one core of a machine does at most: products of floats and of bytes, operations a second (a multiplication and an
// addition are two), and bytes a second that it reads from blocks of several sizes. One line of JSON.
// VECTOR_BITS and DOT_* are a target's. Twelve sums at once hide the latency of any of these instructions.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined __x86_64__
#if VECTOR_BITS == 512
#define R(n) "%%zmm" #n
#elif VECTOR_BITS == 256
#define R(n) "%%ymm" #n
#endif
#ifdef R
#define FLOAT(n) "vfmadd231ps " R(14) "," R(15) "," R(n) "\n"
#define FLOAT_OPS (VECTOR_BITS / 16)
#else
#define R(n) "%%xmm" #n
#define FLOAT(n) "movaps " R(14) "," R(13) "\nmulps " R(15) "," R(13) "\naddps " R(13) "," R(n) "\n"
#define FLOAT_OPS (VECTOR_BITS / 16)
#endif
#if defined DOT_vnni
#define BYTE(n) "vpdpbusd " R(14) "," R(15) "," R(n) "\n"
#define BYTE_OPS (VECTOR_BITS / 4)
#elif defined DOT_avx_vnni
#define BYTE(n) "{vex} vpdpbusd " R(14) "," R(15) "," R(n) "\n"
#define BYTE_OPS (VECTOR_BITS / 4)
#elif VECTOR_BITS >= 256
#define BYTE(n) "vpmaddwd " R(14) "," R(15) "," R(13) "\nvpaddd " R(13) "," R(n) "," R(n) "\n"
#define BYTE_OPS (VECTOR_BITS / 8)
#else
#define BYTE(n) "movdqa " R(14) "," R(13) "\npmaddwd " R(15) "," R(13) "\npaddd " R(13) "," R(n) "\n"
#define BYTE_OPS (VECTOR_BITS / 8)
#endif
#define CLOBBERED "xmm0","xmm1","xmm2","xmm3","xmm4","xmm5","xmm6","xmm7","xmm8","xmm9","xmm10","xmm11","xmm13","xmm14","xmm15"
#elif defined __aarch64__
#define FLOAT(n) "fmla v" #n ".4s, v14.4s, v15.4s\n"
#define FLOAT_OPS 8
#if defined DOT_i8mm
#define BYTE(n) ".arch_extension i8mm\nsmmla v" #n ".4s, v14.16b, v15.16b\n"
#define BYTE_OPS 64
#elif defined DOT_sdot
#define BYTE(n) ".arch_extension dotprod\nsdot v" #n ".4s, v14.16b, v15.16b\n"
#define BYTE_OPS 32
#else
#define BYTE(n) "smlal v" #n ".4s, v14.4h, v15.4h\n"
#define BYTE_OPS 8
#endif
#define CLOBBERED "v0","v1","v2","v3","v4","v5","v6","v7","v8","v9","v10","v11","v13","v14","v15"
#else
#define FLOAT(n) "fmadd.s f" #n ", f14, f15, f" #n "\n"
#define FLOAT_OPS 2
#define BYTE(n) "mulw t1, t0, t2\naddw t1, t1, t2\n"
#define BYTE_OPS 2
#define CLOBBERED "f0","f1","f2","f3","f4","f5","f6","f7","f8","f9","f10","f11","f14","f15","t0","t1","t2"
#endif
#define TWELVE(I) I(0) I(1) I(2) I(3) I(4) I(5) I(6) I(7) I(8) I(9) I(10) I(11)

enum { TURNS = 2000000, TRIES = 7 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double floats(void) {
    double start = now();
    for (long turn = 0; turn < TURNS; turn++) __asm__ volatile(TWELVE(FLOAT) ::: CLOBBERED);
    return 12.0 * FLOAT_OPS * TURNS / (now() - start);
}

static double bytes(void) {
    double start = now();
    for (long turn = 0; turn < TURNS; turn++) __asm__ volatile(TWELVE(BYTE) ::: CLOBBERED);
    return 12.0 * BYTE_OPS * TURNS / (now() - start);
}

typedef uint64_t Words __attribute__((vector_size(64)));

static double reading(const Words *block, size_t size) {
    size_t count = size / sizeof(Words), passes = ((size_t)1 << 28) / size + 1;
    Words sums[4] = {{0}};
    double start = now();
    for (size_t pass = 0; pass < passes; pass++) {
        __asm__ volatile("" ::: "memory");
        for (size_t at = 0; at + 4 <= count; at += 4)
            for (int part = 0; part < 4; part++) sums[part] ^= block[at + (size_t)part];
    }
    double seconds = now() - start;
    volatile Words kept = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
    (void)kept;
    return (double)passes * (double)size / seconds;
}

static double best(double (*measure)(void)) {
    double most = 0;
    for (int turn = 0; turn < TRIES; turn++) {
        double found = measure();
        if (found > most) most = found;
    }
    return most;
}

int main(void) {
    size_t largest = (size_t)1 << 28;
    unsigned char *block = aligned_alloc(4096, largest);
    if (!block) return 1;
    for (size_t at = 0; at < largest; at += 64) block[at] = 1;
    printf("{\"float32\": %.6g, \"int8\": %.6g, \"reading\": {", best(floats), best(bytes));
    for (size_t size = (size_t)1 << 14; size <= largest; size <<= 1) {
        double most = 0;
        for (int turn = 0; turn < 3; turn++) {
            double found = reading((const Words *)block, size);
            if (found > most) most = found;
        }
        printf("%s\"%zu\": %.6g", size == 1 << 14 ? "" : ", ", size, most);
    }
    printf("}}\n");
    return 0;
}
