/* Entry points of the 1-bit products: choose the instruction set, divide work between threads. */
#include "kernels.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* In rising order: each needs the instructions of those before it. */
enum { PORTABLE, AVX2, AVX512, AVX512_VPOPCNTDQ };

typedef struct {
    const uint32_t *words; /* see kernels.h */
    const float *bound;    /* [channels] */
    const float *bias;     /* [channels] or NULL */
    const float *x;        /* [rows][inputs] */
    float *y;              /* [rows][channels] */
    int64_t rows, inputs, channels, row_words;
    float scale;               /* divides products of two binarized factors */
    const float *input_bounds; /* [rows], or NULL for the largest magnitudes */
} product;

typedef int (*task)(const product *, const kernels *, int64_t row, int rows, int64_t first_tile,
                    int64_t end_tile);

/* Shared by all threads. They take units (all rows of some tiles) until none is left. */
typedef struct {
    const product *p;
    const kernels *k;
    task run;
    int64_t row_groups, tile_ranges;
    atomic_llong next;
    atomic_int failed;
} job;

/* Below this number of weights times rows, waking a thread takes longer than it saves: about 80
 * microseconds of either kernel on AVX-512 with threads that sleep (OMP_WAIT_POLICY=passive). */
enum { LEAST_LOOKUPS = 1 << 23, LEAST_POPCOUNTS = 1 << 25 };

/* `GOMP_parallel` of libgomp: use torch's team of threads instead of starting another one. */
typedef void (*team)(void (*run)(void *), void *data, unsigned threads, unsigned flags);

/* Raise this number with every change of the exported functions; native.py has it, too. */
EXPORT int interface(void) { return 1; }

EXPORT int best_path(void) {
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

static kernels kernels_of(int path) {
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

static const uint32_t *tile_words(const product *p, int64_t tile, int64_t word) {
    return p->words + (tile * p->row_words + word) * TILE;
}

static outputs tile_outputs(const product *p, int64_t row, int64_t tile) {
    const int64_t channel = tile * TILE;
    return (outputs){p->bound + channel, p->bias ? p->bias + channel : NULL,
                     p->y + row * p->channels + channel, p->channels};
}

/* Make the tables of `count` words, starting at `word`. Missing inputs count as zeros. */
static void build_tables(const product *p, const kernels *k, int64_t row, int64_t word,
                         int64_t count, float *tables) {
    const float *x = p->x + row * p->inputs + word * WORD;
    int64_t left = p->inputs - word * WORD;
    for (; count > 0; count--, x += WORD, left -= WORD, tables += WORD_TABLES) {
        float rest[WORD] = {0};
        if (left < WORD && left > 0) memcpy(rest, x, (size_t)left * sizeof *x);
        k->tables(left < WORD ? rest : x, tables);
    }
}

/* 1-bit weights, float inputs: process blocks of inputs whose tables fit into the cache. */
static int lookup_task(const product *p, const kernels *k, int64_t row, int rows,
                       int64_t first_tile, int64_t end_tile) {
    _Alignas(64) float tables[CACHED_WORDS * WORD_TABLES];
    const int64_t block = CACHED_WORDS / rows;
    for (int64_t word = 0; word < p->row_words; word += block) {
        const int64_t left = p->row_words - word, n = left < block ? left : block;
        for (int r = 0; r < rows; r++)
            build_tables(p, k, row + r, word, n, tables + r * block * WORD_TABLES);
        for (int64_t tile = first_tile; tile < end_tile; tile++) {
            const int more = tile + 1 < end_tile;
            const uint32_t *next = more ? tile_words(p, tile + 1, word)
                                        : tile_words(p, first_tile, word + n);
            k->lookup(tile_words(p, tile, word), next, tables, n, rows,
                      tile_outputs(p, row, tile), word == 0, n == left);
        }
    }
    return 0;
}

/* Both binary: first the signs and bounds of the rows, then the popcounts. */
static int popcount_task(const product *p, const kernels *k, int64_t row, int rows,
                         int64_t first_tile, int64_t end_tile) {
    float factor[MOST_ROWS];
    uint32_t *signs = calloc((size_t)(rows * p->row_words), sizeof *signs);
    if (!signs) return 1;
    for (int r = 0; r < rows; r++) {
        const float *x = p->x + (row + r) * p->inputs;
        const float greatest = k->signs(x, p->inputs, signs + r * p->row_words);
        factor[r] = 0.5f * (p->input_bounds ? p->input_bounds[row + r] : greatest) / p->scale;
    }
    for (int64_t tile = first_tile; tile < end_tile; tile++)
        k->popcount(tile_words(p, tile, 0), signs, p->row_words, rows, p->inputs, factor,
                    tile_outputs(p, row, tile));
    free(signs);
    return 0;
}

static void work(void *shared) {
    job *j = shared;
    const product *p = j->p;
    const int64_t tiles = p->channels / TILE;
    for (;;) {
        const int64_t unit = atomic_fetch_add(&j->next, 1);
        if (unit >= j->row_groups * j->tile_ranges) return;
        const int64_t range = unit % j->tile_ranges;
        const int64_t row = unit / j->tile_ranges * MOST_ROWS, left = p->rows - row;
        if (j->run(p, j->k, row, left < MOST_ROWS ? (int)left : MOST_ROWS,
                   tiles * range / j->tile_ranges, tiles * (range + 1) / j->tile_ranges))
            atomic_store(&j->failed, 1);
    }
}

/* At least two units for each thread, if there are enough tiles. */
static int run(const product *p, int path, task function, int64_t least, int threads,
               team parallel) {
    const kernels k = kernels_of(path);
    if (!parallel || p->rows * p->inputs * p->channels < least) threads = 1;
    const int64_t tiles = p->channels / TILE, groups = (p->rows + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t wanted = threads > 1 ? (2 * threads + groups - 1) / groups : 1;
    job j = {.p = p, .k = &k, .run = function, .row_groups = groups};
    j.tile_ranges = wanted < tiles ? wanted : tiles;
    if (threads > 1)
        parallel(work, &j, (unsigned)threads, 0);
    else
        work(&j);
    return atomic_load(&j.failed);
}

/* Both return 0, or 1 if there is not enough memory. Shapes are those in `product`; `channels` is a
 * multiple of 64, and `parallel` is the address of GOMP_parallel or NULL. */

EXPORT int linear_1bit(const uint32_t *words, const float *bound, const float *bias,
                       const float *x, float *y, int64_t rows, int64_t inputs, int64_t channels,
                       int64_t row_words, int path, int threads, team parallel) {
    const product p = {.words = words, .bound = bound, .bias = bias, .x = x, .y = y,
                       .rows = rows, .inputs = inputs, .channels = channels,
                       .row_words = row_words};
    return run(&p, path, lookup_task, LEAST_LOOKUPS, threads, parallel);
}

EXPORT int linear_1bit_1bit(const uint32_t *words, const float *bound, const float *bias,
                            const float *x, float *y, int64_t rows, int64_t inputs,
                            int64_t channels, int64_t row_words, float scale,
                            const float *input_bounds, int path, int threads, team parallel) {
    const product p = {.words = words, .bound = bound, .bias = bias, .x = x, .y = y,
                       .rows = rows, .inputs = inputs, .channels = channels,
                       .row_words = row_words, .scale = scale, .input_bounds = input_bounds};
    return run(&p, path, popcount_task, LEAST_POPCOUNTS, threads, parallel);
}
