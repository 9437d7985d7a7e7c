/* Runs the model once on an input of a ramp, and writes the bytes of its first output in hexadecimal digits. */
#include "model.h"

extern int semihost(int operation, const void *argument);

static _Alignas(FORGE_MODEL_ALIGNMENT) uint8_t memory[FORGE_MODEL_MEMORY];
static _Alignas(FORGE_MODEL_ALIGNMENT) FORGE_MODEL_INPUT_0_TYPE input[FORGE_MODEL_INPUT_0_ELEMENTS];
static FORGE_MODEL_OUTPUT_0_TYPE output[FORGE_MODEL_OUTPUT_0_ELEMENTS];

int main(void) {
    const void *const inputs[] = {input};
    void *const outputs[] = {output};
    for (int i = 0; i < FORGE_MODEL_INPUT_0_ELEMENTS; i++) input[i] = (FORGE_MODEL_INPUT_0_TYPE)(i % 100);
    int code = forge_model_start(memory, sizeof memory);
    if (code == FORGE_MODEL_OK) code = forge_model_run(memory, inputs, outputs);
    for (unsigned i = 0; code == FORGE_MODEL_OK && i < sizeof output; i++) {
        const uint8_t byte = ((const uint8_t *)output)[i];
        const char digits[] = {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15], 0};
        semihost(0x04, digits); /* SYS_WRITE0 */
    }
    return code;
}
