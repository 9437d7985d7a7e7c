/* Starts a Cortex-M with floating point from its vector table, and leaves through semihosting: for QEMU or a debugger. */
#include <stddef.h>
#include <stdint.h>

extern char stack_end[], data_source[], data_start[], data_end[], bss_start[], bss_end[];
extern int main(void);

int semihost(int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void leave(int code) {
    const uint32_t reason[2] = {0x20026, (uint32_t)code}; /* ADP_Stopped_ApplicationExit */
    for (;;) semihost(0x20, reason);                       /* SYS_EXIT_EXTENDED */
}

static void fault(void) { leave(99); }

static void reset(void) {
    *(volatile uint32_t *)0xE000ED88 |= 0xFU << 20; /* CPACR: floating point, and vectors */
    __asm__ volatile("dsb\nisb" ::: "memory");
    for (size_t i = 0; data_start + i < data_end; i++) data_start[i] = data_source[i];
    for (char *at = bss_start; at < bss_end; at++) *at = 0;
    leave(main());
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_end, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault,
};
