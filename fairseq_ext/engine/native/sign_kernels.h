/* Products with 1-bit and ternary weights: declarations for signs.c and all files sign_*.c.
 *
 * Layout of a weight. There are tiles of 64 channels and words of 32 inputs (bit j of a word is the
 * sign of input j, 1 is plus). In a tile, the words of its 64 channels for the same inputs are
 * neighbours: words[tile][word][channel]. Channels and inputs after the last one are zero bits.
 * A ternary weight is the mean of two 1-bit weights, its planes: words[tile][plane][word][channel].
 * The kernels add the products of both planes; halving the sum is exact.
 *
 * The machine-dependent functions are in a `kernels` table, one for each instruction set. */
#ifndef FAIRSEQ_EXT_KERNELS_H
#define FAIRSEQ_EXT_KERNELS_H

#include <stdint.h>

enum { TILE = 64, WORD = 32, MOST_ROWS = 4 };

/* The most floats in the tables of one word, and the number of words (over all rows) whose tables
 * are kept: 16 KiB, half of a first-level cache. */
enum { WORD_TABLES = 128, CACHED_WORDS = 32 };

/* The outputs of one tile: rows of 64 values at a distance of `stride`. */
typedef struct {
    const float *bound; /* B_W of the 64 channels */
    const float *bias;  /* or NULL */
    float *y;
    int64_t stride;
} outputs;

typedef struct {
    /* Makes the tables of partial sums of the 32 inputs at x, WORD_TABLES floats. */
    void (*tables)(const float *x, float *tables);

    /* Adds the products of n words to y, and scales the sums if these words are the last.
     * tables: [row][CACHED_WORDS / rows][WORD_TABLES]; next: the words of the call after this. */
    void (*lookup)(const uint32_t *words, const uint32_t *next, const float *tables, int64_t n,
                   int rows, outputs out, int first, int last);

    /* y[row] = (inputs - 2 popcount(words xor signs[row])) * factor[row] * bound / 2 + bias. */
    void (*popcount)(const uint32_t *words, const uint32_t *signs, int64_t n, int rows,
                     int64_t inputs, const float *factor, outputs out);

    /* Writes the sign bits of n values; returns their largest magnitude, or NaN if one is NaN. */
    float (*signs)(const float *x, int64_t n, uint32_t *bits);
} kernels;

extern const kernels portable_kernels;
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_X86 1
extern const kernels avx2_kernels;
extern const kernels avx512_kernels;
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* Turns the popcounts of one row into outputs; compiled for each instruction set. It rounds in the
 * order of BinaryLinear, so that the results agree to the last bit. */
INLINE void finish_counts(const int32_t *counts, int64_t inputs, float factor, outputs out,
                          int row) {
    float *y = out.y + row * out.stride;
    for (int c = 0; c < TILE; c++)
        y[c] = (float)((int32_t)inputs - 2 * counts[c]) * factor * (0.5f * out.bound[c]);
    if (out.bias)
        for (int c = 0; c < TILE; c++) y[c] += out.bias[c];
}

/* Turns a row's sums of signed inputs into outputs, with levels of plus and minus half a bound. */
INLINE void finish_sums(outputs out, int row) {
    float *y = out.y + row * out.stride;
    for (int c = 0; c < TILE; c++) y[c] *= 0.5f * out.bound[c];
    if (out.bias)
        for (int c = 0; c < TILE; c++) y[c] += out.bias[c];
}

typedef struct {
    const uint32_t *words; /* in the layout described above */
    const float *bound;    /* [channels] */
    const float *bias;     /* [channels] or NULL */
    const float *x;        /* [rows][inputs], at a distance of x_stride */
    float *y;              /* [rows][channels], at a distance of y_stride */
    int64_t rows, inputs, channels, row_words, x_stride, y_stride;
    int planes; /* 1, or 2 for ternary weights */
    float scale;               /* divides products of two binarized factors */
    const float *input_bounds; /* [rows], except for rows with NaN; NULL: largest magnitudes */
    uint32_t *room;            /* for the signs of MOST_ROWS rows; NULL: it is allocated */
} product;

/* Computes some tiles of up to MOST_ROWS rows from `row` on; returns 0, or 1 without memory. */
typedef int (*task)(const product *, const kernels *, int64_t row, int rows, int64_t first_tile,
                    int64_t end_tile);

int lookup_task(const product *p, const kernels *k, int64_t row, int rows, int64_t first_tile,
                int64_t end_tile);
int popcount_task(const product *p, const kernels *k, int64_t row, int rows, int64_t first_tile,
                  int64_t end_tile);

/* Instruction sets, each of which includes all before it. */
enum { PORTABLE, AVX2, AVX512, AVX512_VPOPCNTDQ };
int best_kernels(void);
kernels kernels_of(int path);

#endif
