/* The arithmetic for any processor; the compiler maps vectors of four to what the processor has. */
#include <stdint.h>

enum { LANES = 4, GROUP = 4, ROWS = 3, OFFSET = 0, STORED = 1 };
#define NAME portable_arithmetic
#define KERNELS 0
#define LARGER(a, b) choose((a) > (b), a, b)
#define FMA(a, b, c) ((a) * (b) + (c))
typedef int32_t sums4 __attribute__((vector_size(LANES * 4)));

static inline int any(sums4 v) { return v[0] | v[1] | v[2] | v[3]; }

static inline void store_rounded(sums4 x, int8_t *q) {
    for (int lane = 0; lane < LANES; lane++) q[lane] = (int8_t)x[lane];
}

static inline void byte_sums(int rows, int bits, const int8_t *x, int64_t x_stride, const int8_t *w,
                             int64_t fours, int ahead, sums4 sums[][GROUP]) {
    (void)ahead; /* these sums are too slow to gain from prefetching */
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < GROUP; v++) {
            sums4 total = {0};
            for (int64_t k = 0; k < fours; k++)
                for (int lane = 0; lane < LANES; lane++)
                    for (int i = 0; i < 4; i++) {
                        const int64_t place = (k * 64 + v * LANES + lane) * 4 + i;
                        const int minus = (uint8_t)w[place / 8] >> place % 8 & 1;
                        total[lane] += x[r * x_stride + 4 * k + i] *
                                       (bits ? 1 - 2 * minus : w[place]);
                    }
            sums[r][v] = total;
        }
}

#include "arithmetic.inc"
