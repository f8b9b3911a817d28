/* Checks the engine's int8 products in each instruction set of the processor: all must have the
 * same bits (AVX-512 and AMX), and be the sums that a loop computes.
 *
 * It needs no Python, so it also runs in an emulator of a processor that you do not have:
 *   gcc -std=gnu11 -O3 -ffp-contract=off -static -Ifairseq_ext/engine/native -o engine_products \
 *       tests/engine_products.c fairseq_ext/engine/native/[a-z]*.c -lm && ./engine_products
 * It prints the best path of interface.c and the number of wrong products, and ends with status 1
 * if there are any. tests/unit/test_engine_products.py checks all numbers, on this processor. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

int engine_best_path(void);
void engine_product(int path, const weight *w, const float *x, int64_t rows, const float *bias,
                    int act, float *y);

enum { AVX512 = 2, AMX = 4, PATHS = 5 };

static uint64_t state = 88172645463325252ULL;

static uint32_t draw(void) { /* xorshift: the same numbers everywhere */
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 20);
}

static float draw_float(void) { return (float)(draw() % 20001) / 10000.0f - 1.0f; }

static void *room(int64_t bytes) {
    void *memory = calloc(1, (size_t)bytes + 8192); /* weights are prefetched */
    if (!memory) exit(2);
    return memory;
}

/* Returns whether each output is the product in plain integers, times both units, plus the bias. */
static int right(const int8_t *plain, const weight *w, const float *x, int64_t rows,
                 const float *bias, const float *y) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row = x + r * w->inputs;
        float largest = 0;
        for (int64_t k = 0; k < w->inputs; k++) largest = fmaxf(largest, fabsf(row[k]));
        const float unit = largest > 0 ? 127.0f / largest : 0;
        for (int64_t n = 0; n < w->outputs; n++) {
            int64_t sum = 0;
            for (int64_t k = 0; k < w->inputs; k++)
                sum += lrintf(row[k] * unit) * plain[n * w->inputs + k];
            const double expected = (double)sum * (largest / 127.0) * w->scales[n] + bias[n];
            if (!(fabs(expected - y[r * w->outputs + n]) <= 1e-5 * fabs(expected) + 1e-4)) return 0;
        }
    }
    return 1;
}

/* Returns how many paths compute this product wrongly. */
static int wrong_paths(int best_path, int64_t inputs, int64_t outputs, int64_t rows) {
    const int64_t fours = (inputs + 3) / 4, panels = (outputs + PANEL - 1) / PANEL;
    int8_t *plain = room(outputs * inputs), *values = room(panels * fours * 4 * PANEL);
    float *scales = room(panels * PANEL * 4), *x = room(rows * inputs * 4);
    float *bias = room(panels * PANEL * 4), *y[PATHS];
    int32_t *sums = room(panels * PANEL * 4);
    const int extreme = rows % 2; /* only weights of -127 and 127 */
    for (int64_t n = 0; n < outputs; n++) {
        for (int64_t k = 0; k < inputs; k++) {
            const int value = (int)(draw() % 255) - 127;
            const int8_t byte = (int8_t)(extreme ? (value < 0 ? -127 : 127) : value);
            plain[n * inputs + k] = byte;
            values[((n / PANEL * fours + k / 4) * PANEL + n % PANEL) * 4 + k % 4] = byte;
            sums[n] += 128 * byte;
        }
        scales[n] = 0.001f + 0.0001f * (float)(draw() % 100);
        bias[n] = draw_float();
    }
    for (int64_t i = 0; i < rows * inputs; i++) x[i] = draw_float();
    memset(x, 0, (size_t)inputs * sizeof *x);
    const weight w = {.kind = INT8, .inputs = inputs, .outputs = outputs, .values = values,
                      .scales = scales, .sums = sums};
    int wrong = 0;
    for (int path = 0; path <= best_path; path++) {
        y[path] = room(rows * outputs * 4);
        engine_product(path, &w, x, rows, bias, NONE, y[path]);
        wrong += !right(plain, &w, x, rows, bias, y[path]);
    }
    if (best_path == AMX)
        wrong += memcmp(y[AMX], y[AVX512], (size_t)(rows * outputs) * sizeof **y) != 0;
    for (int path = 0; path <= best_path; path++) free(y[path]);
    free(plain), free(values), free(scales), free(x), free(bias), free(sums);
    return wrong;
}

int main(void) {
    const int64_t inputs[] = {64, 70, 128, 192, 512}, outputs[] = {1, 63, 64, 65, 200};
    const int64_t rows[] = {1, 7, 8, 9, 15, 16, 17, 31, 80, 95, 96, 97, 200};
    const int best_path = engine_best_path();
    int products = 0, wrong = 0;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        for (size_t j = 0; j < sizeof outputs / sizeof *outputs; j++)
            for (size_t k = 0; k < sizeof rows / sizeof *rows; k++, products++)
                wrong += wrong_paths(best_path, inputs[i], outputs[j], rows[k]);
    printf("best path %d, %d products, %d wrong\n", best_path, products, wrong);
    return wrong != 0;
}
