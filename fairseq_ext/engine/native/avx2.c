/* The arithmetic for AVX2 and FMA. */
#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma")
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8, GROUP = 2, ROWS = 5 };
#define NAME avx2_arithmetic
#define KERNELS 1
#define FMA(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
typedef int32_t sums8 __attribute__((vector_size(LANES * 4)));

static inline __attribute__((always_inline)) int any(sums8 v) {
    return _mm256_movemask_ps((__m256)v);
}

/* 16 bits as bytes: 1 for a 0, -1 for a 1. */
static inline __attribute__((always_inline)) __m128i bytes_of(const int8_t *p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    const __m128i halves = _mm_set_epi64x(0x0101010101010101, 0);
    const __m128i each = _mm_shuffle_epi8(_mm_set1_epi16((short)bits), halves);
    const __m128i bit = _mm_set1_epi64x((long long)0x8040201008040201);
    return _mm_or_si128(_mm_cmpeq_epi8(_mm_and_si128(each, bit), bit), _mm_set1_epi8(1));
}

/* Four products of a channel are two additions to 32 bits of two products each, added at the end. */
static inline __attribute__((always_inline)) void byte_sums(int rows, int bits, const uint8_t *x,
                                                            int64_t x_stride, const int8_t *w,
                                                            int64_t fours, sums8 sums[][GROUP]) {
    __m256i pairs[ROWS][2 * GROUP];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2 * GROUP; v++) pairs[r][v] = _mm256_setzero_si256();
    for (int64_t k = 0; k < fours; k++) {
        __m256i from[2 * GROUP];
        for (int v = 0; v < 2 * GROUP; v++) {
            const int64_t place = (k * 64 + v * 4) * 4;
            from[v] = _mm256_cvtepi8_epi16(
                bits ? bytes_of(w + place / 8) : _mm_loadu_si128((const __m128i *)(w + place)));
        }
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
