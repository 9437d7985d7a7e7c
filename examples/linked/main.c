/* Reads the model's input as raw bytes, and writes its output so. Link with libmodel.a, and with --gc-sections. */
#include <stdio.h>

#include "model.h"

static _Alignas(FORGE_MODEL_ALIGNMENT) uint8_t memory[FORGE_MODEL_MEMORY];
static _Alignas(FORGE_MODEL_ALIGNMENT) FORGE_MODEL_INPUT_0_TYPE input[FORGE_MODEL_INPUT_0_ELEMENTS];
static FORGE_MODEL_OUTPUT_0_TYPE output[FORGE_MODEL_OUTPUT_0_ELEMENTS];

int main(void) {
    const void *const inputs[] = {input};
    void *const outputs[] = {output};
    if (fread(input, sizeof input, 1, stdin) != 1) return 2;
    if (forge_model_start(memory, sizeof memory - 1) != FORGE_MODEL_BAD_MEMORY) return 3;
    if (forge_model_start(memory, sizeof memory) != FORGE_MODEL_OK) return 4;
    for (int run = 0; run < 2; run++) { /* a session may run any number of times */
        if (forge_model_run(memory, inputs, outputs) != FORGE_MODEL_OK) return 5;
    }
    return fwrite(output, sizeof output, 1, stdout) != 1;
}
