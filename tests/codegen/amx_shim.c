/* AMX's tile instructions as the architecture manual defines them, for CPUs without them. Anything that the manual
   calls an error ends the process. One thread at a time has the tiles, from configuration to release. */
#include <stdint.h>
#include <string.h>

static struct { uint8_t rows[8]; uint16_t bytes[8]; int configured; uint8_t data[8][16][64]; } state;

static int taken;

static void require(int condition) { if (!condition) __builtin_trap(); }

void forge_ldtilecfg(const uint8_t *from) {
    while (__atomic_exchange_n(&taken, 1, __ATOMIC_ACQUIRE)) {}
    require(from[0] == 1 && from[1] == 0);
    for (int i = 2; i < 16; i++) require(from[i] == 0);
    for (int i = 32; i < 48; i++) require(from[i] == 0);
    for (int i = 56; i < 64; i++) require(from[i] == 0);
    memset(&state, 0, sizeof state);
    for (int tile = 0; tile < 8; tile++) {
        state.rows[tile] = from[48 + tile];
        memcpy(&state.bytes[tile], from + 16 + 2 * tile, 2);
        require(state.rows[tile] <= 16 && state.bytes[tile] <= 64);
    }
    state.configured = 1;
}

void forge_tileloadd64(int tile, const uint8_t *from, int64_t stride) {
    require(state.configured && tile >= 0 && tile < 8);
    for (int row = 0; row < state.rows[tile]; row++) memcpy(state.data[tile][row], from + row * stride, state.bytes[tile]);
}

void forge_tilestored64(int tile, uint8_t *to, int64_t stride) {
    require(state.configured && tile >= 0 && tile < 8);
    for (int row = 0; row < state.rows[tile]; row++) memcpy(to + row * stride, state.data[tile][row], state.bytes[tile]);
}

void forge_tdpbusd(int sums, int left, int right) {
    require(state.configured && sums != left && sums != right && left != right);
    require(state.bytes[left] / 4 == state.rows[right] && state.rows[sums] == state.rows[left]);
    for (int m = 0; m < state.rows[left]; m++)
        for (int k = 0; k < state.bytes[left] / 4; k++)
            for (int n = 0; n < state.bytes[sums] / 4; n++) {
                uint32_t sum;
                memcpy(&sum, state.data[sums][m] + 4 * n, 4);
                for (int b = 0; b < 4; b++)
                    sum += (uint32_t)((int32_t)state.data[left][m][4 * k + b] * (int8_t)state.data[right][k][4 * n + b]);
                memcpy(state.data[sums][m] + 4 * n, &sum, 4);
            }
}

void forge_tilerelease(void) {
    require(state.configured);
    memset(&state, 0, sizeof state);
    __atomic_store_n(&taken, 0, __ATOMIC_RELEASE);
}
