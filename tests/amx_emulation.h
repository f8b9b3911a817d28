/* AMX in plain C, for processors without it: `gcc -include tests/amx_emulation.h …` replaces the
 * instructions that the engine uses by functions that follow Intel's manual (volume 2, TDPBUSD and
 * TDPBF16PS). Only denormal numbers, which AMX takes for zeros, keep their values here. */
#define _GNU_SOURCE 1
#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The processor and Linux grant all that is asked for. */
#undef __get_cpuid_count
#define __get_cpuid_count(leaf, subleaf, a, b, c, d) (*(a) = *(b) = *(c) = 0, *(d) = ~0u, 1)
#define syscall(...) 0

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

static __thread tile_shapes shapes __attribute__((unused));
static __thread uint8_t tiles_of_amx[8][16][64] __attribute__((unused));

/* Fails as the processor does if a tile is used before _tile_loadconfig, or after _tile_release. */
static inline void check_tile(int tile) {
    if (shapes.palette != 1 || shapes.rows[tile] > 16 || !shapes.rows[tile] ||
        shapes.row_bytes[tile] > 64 || !shapes.row_bytes[tile])
        abort();
}

static inline void emulated_zero(int tile) {
    check_tile(tile);
    memset(tiles_of_amx[tile], 0, sizeof tiles_of_amx[tile]);
}

static inline void emulated_load(int tile, const void *from, int64_t stride) {
    emulated_zero(tile);
    for (int row = 0; row < shapes.rows[tile]; row++)
        memcpy(tiles_of_amx[tile][row], (const char *)from + row * stride, shapes.row_bytes[tile]);
}

static inline void emulated_store(int tile, void *to, int64_t stride) {
    check_tile(tile);
    for (int row = 0; row < shapes.rows[tile]; row++)
        memcpy((char *)to + row * stride, tiles_of_amx[tile][row], shapes.row_bytes[tile]);
}

static inline float bf16_at(const uint8_t *place) {
    uint16_t half;
    memcpy(&half, place, sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static inline void emulated_product(int bf16, int sums, int inputs, int weights) {
    check_tile(sums), check_tile(inputs), check_tile(weights);
    if (shapes.row_bytes[inputs] != 4 * shapes.rows[weights] ||
        shapes.row_bytes[weights] != shapes.row_bytes[sums] ||
        shapes.rows[inputs] != shapes.rows[sums])
        abort();
    for (int row = 0; row < shapes.rows[sums]; row++)
        for (int column = 0; column < shapes.row_bytes[sums] / 4; column++) {
            uint8_t *place = tiles_of_amx[sums][row] + 4 * column;
            float even = 0, odd = 0, total;
            int32_t sum;
            memcpy(&sum, place, sizeof sum), memcpy(&total, place, sizeof total);
            for (int k = 0; k < shapes.rows[weights]; k++) {
                const uint8_t *x = tiles_of_amx[inputs][row] + 4 * k;
                const uint8_t *w = tiles_of_amx[weights][k] + 4 * column;
                for (int i = 0; i < 4 && !bf16; i++) sum += x[i] * (int8_t)w[i];
                if (bf16) even = fmaf(bf16_at(x), bf16_at(w), even);
                if (bf16) odd = fmaf(bf16_at(x + 2), bf16_at(w + 2), odd);
            }
            total += even + odd;
            memcpy(place, bf16 ? (void *)&total : (void *)&sum, 4);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) memcpy(&shapes, from, sizeof shapes)
#define _tile_release() memset(&shapes, 0, sizeof shapes)
#define _tile_zero emulated_zero
#define _tile_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_dpbusd(sums, inputs, weights) emulated_product(0, sums, inputs, weights)
#define _tile_dpbf16ps(sums, inputs, weights) emulated_product(1, sums, inputs, weights)
