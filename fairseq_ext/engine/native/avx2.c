/* The arithmetic for AVX2 and FMA. */
#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma")
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "engine.h"

enum { LANES = 8, GROUP = 2, ROWS = 5, OFFSET = 0, STORED = 2 };
#define NAME avx2_arithmetic
#define KERNELS 1
#define LARGER(a, b) ((vec)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define FMA(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define FIRST(n) ((__m256i)(lanes() < (int32_t)(n)))
#define LOAD_PART(p, n, rest)                                                                      \
    ((vec)_mm256_blendv_ps(_mm256_set1_ps(rest), _mm256_maskload_ps(p, FIRST(n)), (__m256)FIRST(n)))
typedef int32_t sums8 __attribute__((vector_size(LANES * 4)));

static inline __attribute__((always_inline)) int any(sums8 v) {
    return _mm256_movemask_ps((__m256)v);
}

/* 32 bits as bytes: 1 for a 0, -1 for a 1. */
static inline __attribute__((always_inline)) __m256i bytes_of(const int8_t *p) {
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    const __m256i eighths = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                               0x0303030303030303);
    const __m256i each = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), eighths);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    return _mm256_or_si256(_mm256_cmpeq_epi8(_mm256_and_si256(each, bit), bit), _mm256_set1_epi8(1));
}

/* Stores four inputs, their magnitudes, four more inputs, and their magnitudes, as bytes. */
static inline __attribute__((always_inline)) void store_rounded(sums8 x, int8_t *q) {
    const __m256i halves = _mm256_packs_epi32((__m256i)x, _mm256_abs_epi32((__m256i)x));
    const __m256i bytes = _mm256_packs_epi16(halves, halves);
    const __m256i joined = _mm256_permute4x64_epi64(bytes, _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128((__m128i *)q, _mm256_castsi256_si128(joined));
}

/* A product of bytes is computed as |x| times w with x's sign. The sum of two products is at most
 * 2 * 127^2, which 16 bits hold exactly. */
static inline __attribute__((always_inline)) void byte_sums(int rows, int bits, const int8_t *x,
                                                            int64_t x_stride, const int8_t *w,
                                                            int64_t fours, int ahead,
                                                            sums8 sums[][GROUP]) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < GROUP; v++) sums[r][v] = (sums8)_mm256_setzero_si256();
    for (int64_t k = 0; k < fours; k++, w += bits ? 32 : 256) {
        __m256i from[GROUP];
        for (int v = 0; v < GROUP; v++)
            from[v] = bits ? bytes_of(w + 4 * v) : _mm256_loadu_si256((const __m256i *)(w + 32 * v));
        if (ahead) fetch(w, 4 * PANEL);
        for (int r = 0; r < rows; r++) {
            int32_t four, magnitudes;
            memcpy(&four, x + r * x_stride + 8 * k, sizeof four);
            memcpy(&magnitudes, x + r * x_stride + 8 * k + 4, sizeof magnitudes);
            const __m256i inputs = _mm256_set1_epi32(four), sizes = _mm256_set1_epi32(magnitudes);
            for (int v = 0; v < GROUP; v++) {
                const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(from[v], inputs));
                sums[r][v] += (sums8)_mm256_madd_epi16(pairs, ones);
            }
        }
    }
}

#include "arithmetic.inc"
#endif
