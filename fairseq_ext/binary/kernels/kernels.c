/* Entry points of the 1-bit products: choose the instruction set, divide work between threads. */
#include "kernels.h"

#include <stdatomic.h>
#include <stdlib.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

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

EXPORT int best_path(void) { return best_kernels(); }

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
                       .row_words = row_words, .x_stride = inputs, .y_stride = channels};
    return run(&p, path, lookup_task, LEAST_LOOKUPS, threads, parallel);
}

EXPORT int linear_1bit_1bit(const uint32_t *words, const float *bound, const float *bias,
                            const float *x, float *y, int64_t rows, int64_t inputs,
                            int64_t channels, int64_t row_words, float scale,
                            const float *input_bounds, int path, int threads, team parallel) {
    const product p = {.words = words, .bound = bound, .bias = bias, .x = x, .y = y,
                       .rows = rows, .inputs = inputs, .channels = channels,
                       .row_words = row_words, .x_stride = inputs, .y_stride = channels,
                       .scale = scale, .input_bounds = input_bounds};
    return run(&p, path, popcount_task, LEAST_POPCOUNTS, threads, parallel);
}
