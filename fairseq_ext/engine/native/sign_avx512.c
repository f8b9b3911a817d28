/* The kernels for AVX-512 (F, BW, DQ, VL); `popcount` also needs VPOPCNTDQ.
 *
 * lookup: a table of 16 partial sums fills a register, and VPERMPS reads the entries of 16 channels
 * at once, so 64 products take a permutation and an addition. popcount: 512 products take an XOR, a
 * VPOPCNTD and an addition. */
#include "sign_kernels.h"

#ifdef HAVE_X86
#include <immintrin.h>
#include <string.h>

#define FEATURES "avx512f,avx512bw,avx512dq,avx512vl"
#define TARGET __attribute__((target(FEATURES)))
#define COUNTING_TARGET __attribute__((target(FEATURES ",avx512vpopcntdq")))
enum { LANES = 16, PARTS = TILE / LANES };

/* For each entry of a table: 1 if bit `bit` of its index is set, otherwise -1. */
TARGET INLINE __m512 choice(int bit) {
    const __m512i entry =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 set = _mm512_test_epi32_mask(entry, _mm512_set1_epi32(1 << bit));
    return _mm512_mask_blend_ps(set, _mm512_set1_ps(-1), _mm512_set1_ps(1));
}

TARGET static void tables(const float *x, float *out) {
    const __m512 one = choice(0), two = choice(1), three = choice(2), four = choice(3);
    for (int group = 0; group < WORD / 4; group++, x += 4, out += LANES) {
        __m512 sum = _mm512_mul_ps(_mm512_set1_ps(x[0]), one);
        sum = _mm512_fmadd_ps(_mm512_set1_ps(x[1]), two, sum);
        sum = _mm512_fmadd_ps(_mm512_set1_ps(x[2]), three, sum);
        _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_set1_ps(x[3]), four, sum));
    }
}

/* a + b, computed every second time by the multipliers, which would be idle otherwise. */
TARGET INLINE __m512 add(int part, __m512 a, __m512 b) {
    return part % 2 ? _mm512_add_ps(a, b) : _mm512_fmadd_ps(a, _mm512_set1_ps(1), b);
}

TARGET INLINE void lookup_rows(const uint32_t *words, const uint32_t *next, const float *tables,
                               int64_t n, const int rows, outputs out, int first, int last) {
    const int64_t row_tables = (int64_t)(CACHED_WORDS / rows) * WORD_TABLES;
    __m512 sums[MOST_ROWS][PARTS];
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < PARTS; part++) {
            const float *y = out.y + row * out.stride + part * LANES;
            sums[row][part] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(y);
        }
    for (int64_t k = 0; k < n; k++, words += TILE, next += TILE, tables += WORD_TABLES) {
        __m512i index[PARTS];
        for (int part = 0; part < PARTS; part++) {
            index[part] = _mm512_loadu_si512(words + part * LANES);
            _mm_prefetch((const char *)(next + part * LANES), _MM_HINT_T0);
        }
#pragma GCC unroll 1
        for (int group = 0; group < WORD / 4; group++) {
            for (int row = 0; row < rows; row++) {
                const __m512 table = _mm512_loadu_ps(tables + row * row_tables + group * LANES);
                for (int part = 0; part < PARTS; part++)
                    sums[row][part] = add(
                        part, _mm512_permutexvar_ps(index[part], table), sums[row][part]);
            }
            for (int part = 0; part < PARTS; part++)
                index[part] = _mm512_srli_epi32(index[part], 4);
        }
    }
    for (int row = 0; row < rows; row++) {
        for (int part = 0; part < PARTS; part++)
            _mm512_storeu_ps(out.y + row * out.stride + part * LANES, sums[row][part]);
        if (last) finish_sums(out, row);
    }
}

TARGET static void lookup(const uint32_t *words, const uint32_t *next, const float *tables,
                          int64_t n, int rows, outputs out, int first, int last) {
    if (rows == 1) lookup_rows(words, next, tables, n, 1, out, first, last);
    if (rows == 2) lookup_rows(words, next, tables, n, 2, out, first, last);
    if (rows == 3) lookup_rows(words, next, tables, n, 3, out, first, last);
    if (rows == 4) lookup_rows(words, next, tables, n, 4, out, first, last);
}

COUNTING_TARGET INLINE void popcount_rows(const uint32_t *words, const uint32_t *signs, int64_t n,
                                 const int rows, int64_t inputs, const float *factor,
                                 outputs out) {
    __m512i counts[MOST_ROWS][PARTS];
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < PARTS; part++) counts[row][part] = _mm512_setzero_si512();
    for (int64_t k = 0; k < n; k++, words += TILE) {
        __m512i weight[PARTS];
        for (int part = 0; part < PARTS; part++)
            weight[part] = _mm512_loadu_si512(words + part * LANES);
        for (int row = 0; row < rows; row++) {
            const __m512i sign = _mm512_set1_epi32((int)signs[row * n + k]);
            for (int part = 0; part < PARTS; part++) {
                const __m512i differ = _mm512_xor_si512(weight[part], sign);
                counts[row][part] =
                    _mm512_add_epi32(counts[row][part], _mm512_popcnt_epi32(differ));
            }
        }
    }
    for (int row = 0; row < rows; row++) {
        int32_t row_counts[TILE];
        for (int part = 0; part < PARTS; part++)
            _mm512_storeu_si512(row_counts + part * LANES, counts[row][part]);
        finish_counts(row_counts, inputs, factor[row], out, row);
    }
}

COUNTING_TARGET static void popcount(const uint32_t *words, const uint32_t *signs, int64_t n, int rows,
                            int64_t inputs, const float *factor, outputs out) {
    if (rows == 1) popcount_rows(words, signs, n, 1, inputs, factor, out);
    if (rows == 2) popcount_rows(words, signs, n, 2, inputs, factor, out);
    if (rows == 3) popcount_rows(words, signs, n, 3, inputs, factor, out);
    if (rows == 4) popcount_rows(words, signs, n, 4, inputs, factor, out);
}

TARGET static float signs(const float *x, int64_t n, uint32_t *bits) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i greatest = _mm512_setzero_si512();
    for (int64_t start = 0; start < n; start += WORD) {
        uint32_t word = 0;
        for (int half = 0; half < WORD; half += LANES) {
            const int64_t left = n - start - half;
            const __mmask16 here = left >= LANES ? 0xffff : left > 0 ? (1 << left) - 1 : 0;
            const __m512 value = _mm512_maskz_loadu_ps(here, x + start + half);
            const __m512i pattern = _mm512_and_si512(_mm512_castps_si512(value), magnitude);
            greatest = _mm512_max_epu32(greatest, pattern);
            const __mmask16 plus =
                _mm512_mask_cmp_ps_mask(here, value, _mm512_setzero_ps(), _CMP_GE_OQ);
            word |= (uint32_t)plus << half;
        }
        *bits++ = word;
    }
    const uint32_t pattern = _mm512_reduce_max_epu32(greatest);
    float bound;
    memcpy(&bound, &pattern, sizeof bound);
    return bound;
}

const kernels avx512_kernels = {tables, lookup, popcount, signs};
#endif
