/* The kernels in plain C, for any processor. */
#include "sign_kernels.h"

#include <string.h>

/* Eight tables of 16 entries: entry b of a table is the sum of four inputs with the signs b. */
static void tables(const float *x, float *out) {
    for (int group = 0; group < WORD / 4; group++, x += 4, out += 16)
        for (int bits = 0; bits < 16; bits++) {
            float sum = bits & 1 ? x[0] : -x[0];
            sum += bits & 2 ? x[1] : -x[1];
            sum += bits & 4 ? x[2] : -x[2];
            out[bits] = sum + (bits & 8 ? x[3] : -x[3]);
        }
}

static void lookup(const uint32_t *words, const uint32_t *next, const float *tables, int64_t n,
                   int rows, outputs out, int first, int last) {
    (void)next;
    for (int row = 0; row < rows; row++) {
        const float *table = tables + row * (CACHED_WORDS / rows) * WORD_TABLES;
        float *y = out.y + row * out.stride;
        if (first) memset(y, 0, TILE * sizeof *y);
        for (int64_t k = 0; k < n; k++, table += WORD_TABLES)
            for (int c = 0; c < TILE; c++) {
                uint32_t word = words[k * TILE + c];
                float even = 0, odd = 0;
                for (int group = 0; group < WORD / 4; group += 2, word >>= 8) {
                    even += table[16 * group + (word & 15)];
                    odd += table[16 * group + 16 + (word >> 4 & 15)];
                }
                y[c] += even + odd;
            }
        if (last) finish_sums(out, row);
    }
}

/* Counts set bits by adding neighbours; compilers can vectorize this. */
INLINE uint32_t bits_set(uint32_t word) {
    word -= word >> 1 & 0x55555555u;
    word = (word & 0x33333333u) + (word >> 2 & 0x33333333u);
    word = (word + (word >> 4)) & 0x0f0f0f0fu;
    word += word >> 8;
    return (word + (word >> 16)) & 63;
}

static void popcount(const uint32_t *words, const uint32_t *signs, int64_t n, int rows,
                     int64_t inputs, const float *factor, outputs out) {
    for (int row = 0; row < rows; row++) {
        int32_t counts[TILE] = {0};
        for (int64_t k = 0; k < n; k++) {
            const uint32_t sign = signs[row * n + k];
            for (int c = 0; c < TILE; c++)
                counts[c] += (int32_t)bits_set(words[k * TILE + c] ^ sign);
        }
        finish_counts(counts, inputs, factor[row], out, row);
    }
}

/* Magnitudes can be compared as integers, and NaN is larger than all of them. */
static float signs(const float *x, int64_t n, uint32_t *bits) {
    uint32_t greatest = 0;
    for (int64_t start = 0; start < n; start += WORD) {
        const int count = n - start < WORD ? (int)(n - start) : WORD;
        uint32_t word = 0;
        for (int j = 0; j < count; j++) {
            uint32_t pattern;
            memcpy(&pattern, x + start + j, sizeof pattern);
            pattern &= 0x7fffffffu;
            greatest = pattern > greatest ? pattern : greatest;
            word |= (uint32_t)(x[start + j] >= 0) << j;
        }
        *bits++ = word;
    }
    float bound;
    memcpy(&bound, &greatest, sizeof bound);
    return bound;
}

const kernels portable_kernels = {tables, lookup, popcount, signs};
