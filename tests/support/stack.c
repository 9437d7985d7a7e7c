/* Paints the stack, runs the model, and writes how many bytes of it were used, and how many model.h says. */
#include "model.h"

enum { PAINTED = 30000, PAINT = 0x5a };

extern int semihost(int operation, const void *argument);

static _Alignas(FORGE_MODEL_ALIGNMENT) uint8_t memory[FORGE_MODEL_MEMORY];
static _Alignas(FORGE_MODEL_ALIGNMENT) FORGE_MODEL_INPUT_0_TYPE input[FORGE_MODEL_INPUT_0_ELEMENTS];
static FORGE_MODEL_OUTPUT_0_TYPE output[FORGE_MODEL_OUTPUT_0_ELEMENTS];

static void write(unsigned number) {
    char digits[12] = "          \n";
    for (int at = 9; at == 9 || number; number /= 10) digits[at--] = (char)('0' + number % 10);
    semihost(0x04, digits); /* SYS_WRITE0 */
}

int main(void) {
    const void *const inputs[] = {input};
    void *const outputs[] = {output};
    volatile unsigned char *stack;
    __asm__ volatile("mov %0, sp" : "=r"(stack));
    for (int at = 1; at <= PAINTED; at++) stack[-at] = PAINT;
    int code = forge_model_start(memory, sizeof memory);
    if (code == FORGE_MODEL_OK) code = forge_model_run(memory, inputs, outputs);
    unsigned used = PAINTED;
    while (used && stack[-(int)used] == PAINT) used--;
    write(used);
    write(FORGE_MODEL_STACK);
    return code;
}
