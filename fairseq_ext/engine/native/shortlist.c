#include "shortlist.h"

#include <stdlib.h>
#include <string.h>

/* Returns how many units store the inputs of an output, [panel][unit][64]. A unit has 32 bits, but
 * in BITS8 4 bits. */
static int64_t units_of(const weight *w) {
    switch (w->kind) {
    case F32: return w->inputs;
    case BF16: return (w->inputs + 1) / 2;
    case SIGNS: return (w->inputs + 63) / 64 * 2;
    case TERNARY: return (w->inputs + 63) / 64 * 4;
    default: return (w->inputs + 3) / 4;
    }
}

/* Copies the units of the listed outputs; memory after the last output stays 0. The inner loop runs
 * over outputs, because outputs next to each other in the vocabulary share a cache line. */
static void copy_words(const void *from, const int32_t *tokens, int64_t count, int64_t units,
                       void *to) {
    for (int64_t first = 0; first < count; first += PANEL) {
        const int64_t many = count - first < PANEL ? count - first : PANEL;
        uint32_t *y = (uint32_t *)to + first * units;
        const uint32_t *x[PANEL];
        for (int64_t i = 0; i < many; i++)
            x[i] = (const uint32_t *)from + tokens[first + i] / PANEL * PANEL * units +
                   tokens[first + i] % PANEL;
        for (int64_t u = 0; u < units; u++)
            for (int64_t i = 0; i < many; i++) y[u * PANEL + i] = x[i][u * PANEL];
    }
}

static void copy_nibbles(const void *from, const int32_t *tokens, int64_t count, int64_t units,
                         void *to) {
    const int64_t line = PANEL / 2; /* bytes of a unit of all outputs of a panel */
    for (int64_t i = 0; i < count; i++) {
        const int64_t token = tokens[i], source = token % PANEL, target = i % PANEL;
        const uint8_t *x = (const uint8_t *)from + token / PANEL * line * units + source / 2;
        uint8_t *y = (uint8_t *)to + i / PANEL * line * units + target / 2;
        for (int64_t u = 0; u < units; u++) {
            const int bits = x[u * line] >> (source % 2 * 4) & 15;
            y[u * line] |= (uint8_t)(bits << (target % 2 * 4));
        }
    }
}

static int choose_one(const program *what, const output *layer, const int32_t *tokens, int64_t count,
                      choices *out) {
    const weight *whole = &what->weights[layer->weight];
    const float *bias = layer->bias < 0 ? NULL : what->weights[layer->bias].values;
    *out = (choices){*whole, bias, tokens, NULL};
    if (!tokens) return 0;
    const int64_t units = units_of(whole);
    const size_t padded = (size_t)((count + PANEL - 1) / PANEL * PANEL);
    const size_t values = whole->kind == BITS8 ? padded / 2 * (size_t)units : padded * 4 * (size_t)units;
    const size_t vector = padded * sizeof(float), all = values + 3 * vector;
    char *memory = aligned_alloc(64, (all + 63) / 64 * 64);
    if (!memory) return 1;
    memset(memory, 0, all);
    float *scales = (float *)(memory + values), *biases = scales + 2 * padded;
    int32_t *sums = (int32_t *)(scales + padded);
    out->memory = memory, out->output.values = memory, out->output.outputs = count;
    (whole->kind == BITS8 ? copy_nibbles : copy_words)(whole->values, tokens, count, units, memory);
    for (int64_t i = 0; i < count; i++) {
        if (whole->scales) scales[i] = whole->scales[tokens[i]];
        if (whole->sums) sums[i] = whole->sums[tokens[i]];
        if (bias) biases[i] = bias[tokens[i]];
    }
    if (whole->scales) out->output.scales = scales;
    if (whole->sums) out->output.sums = sums;
    if (bias) out->bias = biases;
    return 0;
}

choices *choose(const program *what, const int32_t *listed, const int64_t *begins, int64_t sentences) {
    const int64_t layers = what->output_count, count = sentences * layers;
    choices *some = calloc((size_t)count, sizeof *some);
    int failed = !some;
    for (int64_t i = 0; !failed && i < count; i++) {
        const int64_t s = i / layers;
        const output *layer = &what->outputs[i % layers];
        failed = listed ? choose_one(what, layer, listed + begins[s], begins[s + 1] - begins[s], &some[i])
                        : choose_one(what, layer, NULL, 0, &some[i]);
    }
    if (!failed) return some;
    forget_choices(some, count);
    return NULL;
}

void forget_choices(choices *some, int64_t count) {
    for (int64_t i = 0; some && i < count; i++) free(some[i].memory);
    free(some);
}

int32_t place_of(const choices *from, int32_t token) {
    if (!from->tokens) return token;
    int64_t low = 0, high = from->output.outputs;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (from->tokens[middle] < token) low = middle + 1;
        else high = middle;
    }
    return low < from->output.outputs && from->tokens[low] == token ? (int32_t)low : -1;
}
