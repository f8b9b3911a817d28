/* Products with binary and ternary weights, by the kernels of sign_kernels.h. */
#include <math.h>
#include <string.h>

#include "sign_kernels.h"
#include "engine.h"

/* Returns twice the level of a row's inputs; for BY_LARGEST, the kernels find it themselves. */
static float bound_of(const weight *w, const float *x) {
    if (w->reading == BY_BOUND) return w->bound;
    float sum = 0;
    for (int64_t k = 0; k < w->inputs; k++) sum += fabsf(x[k]);
    return 2 * sum / (float)w->inputs;
}

static void some_rows(const weight *w, product what, const kernels *k, int64_t first, int64_t end) {
    const int many = (int)what.rows;
    float bounds[MOST_ROWS];
    if (w->reading == FLOATS) {
        lookup_task(&what, k, 0, many, first, end);
        return;
    }
    for (int r = 0; w->reading != BY_LARGEST && r < many; r++)
        bounds[r] = bound_of(w, what.x + r * what.x_stride);
    what.input_bounds = w->reading == BY_LARGEST ? NULL : bounds;
    popcount_task(&what, k, 0, many, first, end);
}

void product_of_signs(const weight *w, const float *x, int64_t x_stride, int64_t rows,
                      const float *bias, float *y, int64_t y_stride, void *scratch,
                      int path) {
    const int best = best_kernels();
    const kernels k = kernels_of(path < best ? path : best);
    const int64_t whole = w->outputs / TILE, rest = w->outputs % TILE;
    const int planes = w->kind == TERNARY ? 2 : 1;
    product what = {.words = w->values, .bound = w->scales, .inputs = w->inputs,
                    .channels = whole * TILE, .row_words = (w->inputs + 63) / 64 * 2, .planes = planes,
                    .x_stride = x_stride, .scale = w->divisor, .room = scratch};
    /* The last tile may be wider than the output, so it is computed in a buffer. */
    float last[MOST_ROWS * TILE], last_bias[TILE] = {0};
    if (bias) memcpy(last_bias, bias + whole * TILE, (size_t)rest * sizeof *bias);
    for (int64_t row = 0; row < rows; row += MOST_ROWS) {
        const int64_t left = rows - row, many = left < MOST_ROWS ? left : MOST_ROWS;
        what.x = x + row * x_stride, what.rows = many;
        what.y = y + row * y_stride, what.y_stride = y_stride, what.bias = bias;
        if (whole) some_rows(w, what, &k, 0, whole);
        if (!rest) continue;
        what.words = (const uint32_t *)w->values + whole * planes * what.row_words * TILE;
        what.bound = w->scales + whole * TILE, what.bias = bias ? last_bias : NULL;
        what.y = last, what.y_stride = TILE;
        some_rows(w, what, &k, 0, 1);
        for (int64_t r = 0; r < many; r++)
            memcpy(y + (row + r) * y_stride + whole * TILE, last + r * TILE, (size_t)rest * sizeof *y);
        what.words = w->values, what.bound = w->scales;
    }
}
