/* The 1-bit products of some rows and tiles, by one thread. */
#include "sign_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int best_kernels(void) {
#ifdef HAVE_X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return AVX2;
    return __builtin_cpu_supports("avx512vpopcntdq") ? AVX512_VPOPCNTDQ : AVX512;
#else
    return PORTABLE;
#endif
}

kernels kernels_of(int path) {
    kernels chosen = portable_kernels;
#ifdef HAVE_X86
    if (path >= AVX2) chosen = avx2_kernels;
    if (path >= AVX512) {
        chosen.tables = avx512_kernels.tables;
        chosen.lookup = avx512_kernels.lookup;
        chosen.signs = avx512_kernels.signs;
    }
    if (path >= AVX512_VPOPCNTDQ) chosen.popcount = avx512_kernels.popcount;
#endif
    return chosen;
}

static const uint32_t *tile_words(const product *p, int64_t tile, int plane, int64_t word) {
    return p->words + ((tile * p->planes + plane) * p->row_words + word) * TILE;
}

static outputs tile_outputs(const product *p, int64_t row, int64_t tile) {
    const int64_t channel = tile * TILE;
    return (outputs){p->bound + channel, p->bias ? p->bias + channel : NULL,
                     p->y + row * p->y_stride + channel, p->y_stride};
}

/* Make the tables of `count` words, starting at `word`. Missing inputs count as zeros. */
static void build_tables(const product *p, const kernels *k, int64_t row, int64_t word,
                         int64_t count, float *tables) {
    const float *x = p->x + row * p->x_stride + word * WORD;
    int64_t left = p->inputs - word * WORD;
    for (; count > 0; count--, x += WORD, left -= WORD, tables += WORD_TABLES) {
        float rest[WORD] = {0};
        if (left < WORD && left > 0) memcpy(rest, x, (size_t)left * sizeof *x);
        k->tables(left < WORD ? rest : x, tables);
    }
}

/* Float inputs: process blocks of inputs whose tables fit into the cache. */
int lookup_task(const product *p, const kernels *k, int64_t row, int rows, int64_t first_tile,
                int64_t end_tile) {
    _Alignas(64) float tables[CACHED_WORDS * WORD_TABLES];
    const int64_t block = CACHED_WORDS / rows;
    for (int64_t word = 0; word < p->row_words; word += block) {
        const int64_t left = p->row_words - word, n = left < block ? left : block;
        for (int r = 0; r < rows; r++)
            build_tables(p, k, row + r, word, n, tables + r * block * WORD_TABLES);
        for (int64_t tile = first_tile; tile < end_tile; tile++)
            for (int plane = 0; plane < p->planes; plane++) {
                const int last = plane + 1 == p->planes;
                const uint32_t *next = !last ? tile_words(p, tile, plane + 1, word)
                                       : tile + 1 < end_tile ? tile_words(p, tile + 1, 0, word)
                                                             : tile_words(p, first_tile, 0, word + n);
                k->lookup(tile_words(p, tile, plane, word), next, tables, n, rows,
                          tile_outputs(p, row, tile), word == 0 && plane == 0, n == left && last);
            }
    }
    return 0;
}

/* Binary inputs: first the signs and bounds of the rows, once for each plane, then the popcounts. */
int popcount_task(const product *p, const kernels *k, int64_t row, int rows, int64_t first_tile,
                  int64_t end_tile) {
    float factor[MOST_ROWS];
    const int64_t words = p->planes * p->row_words;
    const size_t size = (size_t)(rows * words) * sizeof *p->room;
    uint32_t *signs = p->room ? p->room : malloc(size);
    if (!signs) return 1;
    memset(signs, 0, size);
    for (int r = 0; r < rows; r++) {
        const float *x = p->x + (row + r) * p->x_stride;
        uint32_t *bits = signs + r * words;
        float bound = k->signs(x, p->inputs, bits);
        if (p->planes == 2) memcpy(bits + p->row_words, bits, (size_t)p->row_words * sizeof *bits);
        if (p->input_bounds && !isnan(bound)) bound = p->input_bounds[row + r];
        factor[r] = 0.5f * bound / p->scale;
    }
    for (int64_t tile = first_tile; tile < end_tile; tile++)
        k->popcount(tile_words(p, tile, 0, 0), signs, words, rows, p->planes * p->inputs, factor,
                    tile_outputs(p, row, tile));
    if (!p->room) free(signs);
    return 0;
}
