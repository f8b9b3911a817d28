/* The kernels for AVX2 and FMA.
 *
 * lookup: VPERMPS reads tables of 8 entries, so a word of 32 inputs is divided into ten groups of
 * three and one of two. popcount: a table (PSHUFB) has the counts of half bytes, which are added as
 * bytes as long as these cannot overflow. */
#include "sign_kernels.h"

#ifdef HAVE_X86
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx2,fma")))
enum { LANES = 8, GROUP = 3, GROUPS = 11 };
enum { PARTS = 4, SPAN = PARTS * LANES }; /* channels whose sums fit into the registers */
enum { SAFE_WORDS = 31 };                 /* a byte counts up to 8 bits in each word */

TARGET static void tables(const float *x, float *out) {
    const __m256 one = _mm256_setr_ps(-1, 1, -1, 1, -1, 1, -1, 1);
    const __m256 two = _mm256_setr_ps(-1, -1, 1, 1, -1, -1, 1, 1);
    const __m256 three = _mm256_setr_ps(-1, -1, -1, -1, 1, 1, 1, 1);
    for (int group = 0; group < GROUPS; group++, x += GROUP, out += LANES) {
        __m256 sum = _mm256_mul_ps(_mm256_set1_ps(x[0]), one);
        sum = _mm256_fmadd_ps(_mm256_set1_ps(x[1]), two, sum);
        if (group < GROUPS - 1) sum = _mm256_fmadd_ps(_mm256_set1_ps(x[2]), three, sum);
        _mm256_storeu_ps(out, sum);
    }
}

/* a + b, computed every second time by the multipliers, which would be idle otherwise. */
TARGET INLINE __m256 add(int part, __m256 a, __m256 b) {
    return part % 2 ? _mm256_add_ps(a, b) : _mm256_fmadd_ps(a, _mm256_set1_ps(1), b);
}

TARGET INLINE void lookup_span(const uint32_t *words, const uint32_t *next, const float *tables,
                               int64_t n, const int rows, int64_t row_tables, float *y,
                               int64_t stride, int first) {
    __m256 sums[2][PARTS];
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < PARTS; part++)
            sums[row][part] =
                first ? _mm256_setzero_ps() : _mm256_loadu_ps(y + row * stride + part * LANES);
    for (int64_t k = 0; k < n; k++, words += TILE, next += TILE, tables += WORD_TABLES) {
        __m256i index[PARTS];
        _mm_prefetch((const char *)next, _MM_HINT_T0);
        _mm_prefetch((const char *)(next + SPAN / 2), _MM_HINT_T0);
        for (int part = 0; part < PARTS; part++)
            index[part] = _mm256_loadu_si256((const __m256i *)(words + part * LANES));
#pragma GCC unroll 1
        for (int group = 0; group < GROUPS; group++) {
            for (int row = 0; row < rows; row++) {
                const __m256 table = _mm256_loadu_ps(tables + row * row_tables + group * LANES);
                for (int part = 0; part < PARTS; part++)
                    sums[row][part] = add(
                        part, _mm256_permutevar8x32_ps(table, index[part]), sums[row][part]);
            }
            for (int part = 0; part < PARTS; part++)
                index[part] = _mm256_srli_epi32(index[part], GROUP);
        }
    }
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < PARTS; part++)
            _mm256_storeu_ps(y + row * stride + part * LANES, sums[row][part]);
}

TARGET static void lookup(const uint32_t *words, const uint32_t *next, const float *tables,
                          int64_t n, int rows, outputs out, int first, int last) {
    const int64_t row_tables = (int64_t)(CACHED_WORDS / rows) * WORD_TABLES;
    for (int row = 0; row < rows; row += 2)
        for (int channel = 0; channel < TILE; channel += SPAN) {
            const uint32_t *here = words + channel, *later = next + channel;
            const float *own = tables + row * row_tables;
            float *y = out.y + row * out.stride + channel;
            if (rows - row == 1)
                lookup_span(here, later, own, n, 1, row_tables, y, out.stride, first);
            else
                lookup_span(here, later, own, n, 2, row_tables, y, out.stride, first);
        }
    if (last)
        for (int row = 0; row < rows; row++) finish_sums(out, row);
}

/* The number of set bits in each byte. */
TARGET INLINE __m256i byte_bits(__m256i value) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(value, 4), low);
    return _mm256_add_epi8(_mm256_shuffle_epi8(table, _mm256_and_si256(value, low)),
                           _mm256_shuffle_epi8(table, high));
}

/* Sums of the four bytes of each 32-bit lane. */
TARGET INLINE __m256i lane_sums(__m256i bytes) {
    const __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

TARGET INLINE void count_span(const uint32_t *words, const uint32_t *signs, int64_t n,
                              int32_t *counts) {
    __m256i total[PARTS];
    for (int part = 0; part < PARTS; part++) total[part] = _mm256_setzero_si256();
    for (int64_t start = 0; start < n; start += SAFE_WORDS) {
        const int64_t end = start + SAFE_WORDS < n ? start + SAFE_WORDS : n;
        __m256i bytes[PARTS];
        for (int part = 0; part < PARTS; part++) bytes[part] = _mm256_setzero_si256();
        for (int64_t k = start; k < end; k++) {
            const __m256i sign = _mm256_set1_epi32((int)signs[k]);
            for (int part = 0; part < PARTS; part++) {
                const uint32_t *here = words + k * TILE + part * LANES;
                const __m256i weight = _mm256_loadu_si256((const __m256i *)here);
                const __m256i differ = _mm256_xor_si256(weight, sign);
                bytes[part] = _mm256_add_epi8(bytes[part], byte_bits(differ));
            }
        }
        for (int part = 0; part < PARTS; part++)
            total[part] = _mm256_add_epi32(total[part], lane_sums(bytes[part]));
    }
    for (int part = 0; part < PARTS; part++)
        _mm256_storeu_si256((__m256i *)(counts + part * LANES), total[part]);
}

TARGET static void popcount(const uint32_t *words, const uint32_t *signs, int64_t n, int rows,
                            int64_t inputs, const float *factor, outputs out) {
    for (int row = 0; row < rows; row++) {
        int32_t counts[TILE];
        for (int channel = 0; channel < TILE; channel += SPAN)
            count_span(words + channel, signs + row * n, n, counts + channel);
        finish_counts(counts, inputs, factor[row], out, row);
    }
}

TARGET static float signs(const float *x, int64_t n, uint32_t *bits) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i greatest = _mm256_setzero_si256();
    for (; n >= WORD; n -= WORD, x += WORD) {
        uint32_t word = 0;
        for (int quarter = 0; quarter < WORD; quarter += LANES) {
            const __m256 value = _mm256_loadu_ps(x + quarter);
            const __m256i pattern = _mm256_and_si256(_mm256_castps_si256(value), magnitude);
            greatest = _mm256_max_epu32(greatest, pattern);
            const __m256 plus = _mm256_cmp_ps(value, _mm256_setzero_ps(), _CMP_GE_OQ);
            word |= (uint32_t)_mm256_movemask_ps(plus) << quarter;
        }
        *bits++ = word;
    }
    uint32_t lanes[LANES + 1] = {0};
    _mm256_storeu_si256((__m256i *)lanes, greatest);
    if (n) {
        const float rest = portable_kernels.signs(x, n, bits);
        memcpy(lanes + LANES, &rest, sizeof rest);
    }
    uint32_t pattern = 0;
    for (int lane = 0; lane <= LANES; lane++)
        pattern = lanes[lane] > pattern ? lanes[lane] : pattern;
    float bound;
    memcpy(&bound, &pattern, sizeof bound);
    return bound;
}

const kernels avx2_kernels = {tables, lookup, popcount, signs};
#endif
