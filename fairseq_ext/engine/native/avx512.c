/* The arithmetic for AVX-512 (F, BW, DQ, VL, VNNI). */
#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "engine.h"

enum { LANES = 16, GROUP = 4, ROWS = 6, OFFSET = 128, STORED = 1 };
#define NAME avx512_arithmetic
#define KERNELS 3 /* lowered later to what the processor has */
#define FMA(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
typedef int32_t sums16 __attribute__((vector_size(LANES * 4)));

static inline __attribute__((always_inline)) int any(sums16 v) {
    return _mm512_movepi32_mask((__m512i)v);
}

static inline __attribute__((always_inline)) void store_rounded(sums16 x, int8_t *q) {
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8((__m512i)x));
}

static inline __attribute__((always_inline)) void byte_sums(int rows, int bits, const int8_t *x,
                                                            int64_t x_stride, const int8_t *w,
                                                            int64_t fours, int ahead,
                                                            sums16 sums[][GROUP]) {
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < GROUP; v++) sums[r][v] = (sums16)_mm512_setzero_si512();
    for (int64_t k = 0; k < fours; k++, w += bits ? 32 : 256) {
        __m512i from[GROUP];
        for (int v = 0; v < GROUP; v++) {
            uint64_t mask; /* a bit of 0 means 1, a bit of 1 means -1 */
            memcpy(&mask, w + 8 * v, sizeof mask);
            from[v] = bits ? _mm512_or_si512(_mm512_movm_epi8(mask), _mm512_set1_epi8(1))
                           : _mm512_loadu_si512(w + 64 * v);
        }
        if (ahead) fetch(w, 4 * PANEL);
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, x + r * x_stride + 4 * k, sizeof four);
            const __m512i inputs = _mm512_set1_epi32(four);
            for (int v = 0; v < GROUP; v++)
                sums[r][v] = (sums16)_mm512_dpbusd_epi32((__m512i)sums[r][v], inputs, from[v]);
        }
    }
}

#include "arithmetic.inc"
#endif
