/* The arithmetic for AVX2 and FMA. */
#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma")
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, GROUP = 2, ROWS = 5 };
#define NAME avx2_arithmetic
#define FMA(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
typedef int32_t sums8 __attribute__((vector_size(LANES * 4)));

static inline __attribute__((always_inline)) int any(sums8 v) {
    return _mm256_movemask_ps((__m256)v);
}

/* Four products of a channel are two additions to 32 bits of two products each, added at the end. */
static inline __attribute__((always_inline)) void int8_sums(int rows, const uint8_t *x,
                                                            int64_t x_stride, const int8_t *w,
                                                            int64_t fours, sums8 sums[][GROUP]) {
    __m256i pairs[ROWS][2 * GROUP];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2 * GROUP; v++) pairs[r][v] = _mm256_setzero_si256();
    for (int64_t k = 0; k < fours; k++) {
        __m256i from[2 * GROUP];
        for (int v = 0; v < 2 * GROUP; v++)
            from[v] = _mm256_cvtepi8_epi16(
                _mm_loadu_si128((const __m128i *)(w + (k * 64 + v * 4) * 4)));
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, x + r * x_stride + 4 * k, sizeof four);
            const __m256i inputs =
                _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(_mm_cvtsi32_si128(four)));
            for (int v = 0; v < 2 * GROUP; v++)
                pairs[r][v] = _mm256_add_epi32(pairs[r][v], _mm256_madd_epi16(from[v], inputs));
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < GROUP; v++)
            sums[r][v] = (sums8)_mm256_permute4x64_epi64(
                _mm256_hadd_epi32(pairs[r][2 * v], pairs[r][2 * v + 1]), 0xd8);
}

#include "arithmetic.inc"
#endif
