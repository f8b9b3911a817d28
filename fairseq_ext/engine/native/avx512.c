/* The arithmetic for AVX-512 (F, BW, DQ, VL, VNNI), and beside it for AVX512-BF16 and for AMX. */
#define _GNU_SOURCE 1 /* for syscall */
#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "engine.h"

enum { LANES = 16, GROUP = 4, ROWS = 6, OFFSET = 128, STORED = 1 };
#define NAME avx512_arithmetic
#define KERNELS 3 /* lowered later to what the processor has */
#define LARGER(a, b) ((vec)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define FMA(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define FIRST(n) ((__mmask16)((1u << (n)) - 1))
#define LOAD_PART(p, n, rest) ((vec)_mm512_mask_loadu_ps(_mm512_set1_ps(rest), FIRST(n), p))
#define STORE_PART(p, n, v) _mm512_mask_storeu_ps(p, FIRST(n), (__m512)(v))
#define TIMES_POWER(x, n) ((vec)_mm512_scalef_ps((__m512)(x), (__m512)(n)))
#define WIDEN(v) ((uvec)_mm512_cvtepu16_epi32((__m256i)(v)))
#define NARROW(v) ((halfwords)_mm512_cvtepi32_epi16((__m512i)(v)))
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

#ifdef HAVE_BF16
/* An instruction of AVX512-BF16 adds the products of two inputs with their weights, all in bf16, to
 * the sums of 16 outputs. */
#define PAIRWISE __attribute__((target("avx512bf16")))

PAIRWISE static void round_to_bf16(const float *x, int64_t n, uint16_t *rounded) {
    for (int64_t i = 0; i < n; i += LANES) {
        const __m256bh halves = _mm512_cvtneps_pbh((__m512)load_first(x + i, n - i, 0));
        memcpy(rounded + i, &halves, sizeof halves);
    }
}

PAIRWISE INLINE void pairs_tile(int rows, const task *job, int64_t row, int64_t column) {
    const uint16_t *x = (const uint16_t *)job->x + row * job->x_stride;
    const float *w = weights_of(job->w, column);
    vec sums[ROWS][GROUP];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < GROUP; v++) sums[r][v] = all(0);
    for (int64_t k = 0; k < job->w->inputs; k += 2, w += PANEL) {
        __m512bh from[GROUP];
        for (int v = 0; v < GROUP; v++) from[v] = (__m512bh)load(w + v * LANES);
        if (row == 0) fetch(w, 4 * PANEL);
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, x + r * job->x_stride + k, sizeof pair);
            const __m512bh inputs = (__m512bh)_mm512_set1_epi32(pair);
            for (int v = 0; v < GROUP; v++)
                sums[r][v] = (vec)_mm512_dpbf16_ps((__m512)sums[r][v], inputs, from[v]);
        }
    }
    for (int r = 0; r < rows; r++) finish(sums[r], job->to, row + r, column);
}

#define PAIRS(n) PAIRWISE TILE(pairs, n, pairs_tile(n, job, row, column))
PAIRS(1) PAIRS(2) PAIRS(3) PAIRS(4) PAIRS(5) PAIRS(6)

static void by_pairs(const task *job, int64_t rows) {
    static const tile pairs[ROWS + 1] = {NULL, pairs_1, pairs_2, pairs_3, pairs_4, pairs_5, pairs_6};
    if (job->w->kind == BF16) tile_by_tile(pairs, job, rows, 0);
    else all_tiles(job, rows);
}

PRODUCT(product_by_pairs, by_pairs, round_to_bf16)
const arithmetic avx512_bf16_arithmetic = ARITHMETIC(product_by_pairs);
#endif

#ifdef HAVE_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* An instruction of AMX multiplies 16 rows of 64 bytes of inputs, which are 64 bytes or 32 numbers in
 * bf16, by the weights of 16 outputs for these inputs. The sums of bytes are those of byte_sums, so
 * outputs have the same bits, and products of fewer than LEAST_ROWS rows, which would leave most of a
 * tile empty, are left to byte_sums. Sums of bf16 are rounded in an order of AMX's own, so all rows
 * take this way: a row's outputs must not depend on how many others there are. */
enum { TILE_ROWS = 16, TILE_BYTES = 64, LEAST_ROWS = 8, REQUEST_STATE = 0x1023, TILE_STATE = 18 };
#define AMX __attribute__((target("amx-tile,amx-int8,amx-bf16")))

int amx_available(void) {
    unsigned a, b, c, d;
    const unsigned needed = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & needed) != needed) return 0;
    /* Linux saves the tiles of a process only if the process has asked for it. */
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_STATE) == 0;
}

/* Adds the products of tile 4, the inputs, with a tile of weights to a tile of sums. */
#define ADD_PRODUCTS(sums, weights)                                                                \
    do {                                                                                           \
        if (bf16) _tile_dpbf16ps(sums, 4, weights);                                                \
        else _tile_dpbusd(sums, 4, weights);                                                       \
    } while (0)

/* Tiles 0 to 3 hold the sums of a panel's 64 outputs, tile 4 the inputs, 5 to 7 weights. */
AMX INLINE void panel_sums(int bf16, const int8_t *x, int64_t row_bytes, const int8_t *w,
                           int64_t bytes, __m512 sums[][GROUP]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < bytes; k += TILE_BYTES, w += PANEL * TILE_BYTES) {
        _tile_loadd(4, x + k, row_bytes);
        _tile_loadd(5, w, 4 * PANEL);
        ADD_PRODUCTS(0, 5);
        _tile_loadd(6, w + 64, 4 * PANEL);
        ADD_PRODUCTS(1, 6);
        _tile_loadd(7, w + 128, 4 * PANEL);
        ADD_PRODUCTS(2, 7);
        _tile_loadd(5, w + 192, 4 * PANEL);
        ADD_PRODUCTS(3, 5);
    }
    _tile_stored(0, &sums[0][0], 4 * PANEL);
    _tile_stored(1, &sums[0][1], 4 * PANEL);
    _tile_stored(2, &sums[0][2], 4 * PANEL);
    _tile_stored(3, &sums[0][3], 4 * PANEL);
}

AMX INLINE void all_panels(int bf16, const task *job, int64_t rows) {
    const weight *w = job->w;
    const int64_t size = bf16 ? 2 : 1, row_bytes = job->x_stride * size, bytes = w->inputs * size;
    __m512 sums[TILE_ROWS][GROUP]; /* 32-bit integers for bytes */
    for (int64_t column = 0; column < w->outputs; column += PANEL)
        for (int64_t row = 0; row < rows; row += TILE_ROWS) {
            /* Rows after the last one are unused memory, whose sums are unused too. */
            panel_sums(bf16, (const int8_t *)job->x + row * row_bytes, row_bytes,
                       (const int8_t *)w->values + column * bytes, bytes, sums);
            for (int64_t r = 0; r < lesser(TILE_ROWS, rows - row); r++)
                if (bf16) finish((const vec *)sums[r], job->to, row + r, column);
                else finish_bytes(job, (const ivec *)sums[r], row + r, column);
        }
}

AMX static void by_tiles(const task *job, int64_t rows) {
    const int bf16 = job->w->kind == BF16, bytes = job->w->kind == INT8 && rows >= LEAST_ROWS;
    if (!(bf16 || bytes) || job->w->inputs % (bf16 ? TILE_BYTES / 2 : TILE_BYTES)) {
        by_pairs(job, rows);
        return;
    }
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) shape.row_bytes[tile] = 64, shape.rows[tile] = TILE_ROWS;
    /* The compiler does not know that the next instructions read this shape and the inputs. */
    __asm__ volatile("" : : "m"(shape) : "memory");
    _tile_loadconfig(&shape);
    if (bf16) all_panels(1, job, rows);
    else all_panels(0, job, rows);
    _tile_release();
}

PRODUCT(product_by_tiles, by_tiles, round_to_bf16)
const arithmetic amx_arithmetic = ARITHMETIC(product_by_tiles);
#endif
#endif
