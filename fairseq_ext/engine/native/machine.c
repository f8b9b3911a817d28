#include "machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of the last operation that needs a register. The decoder's operations are
 * numbered after the encoder's; `all` means that the register is needed through all steps. */
static int32_t last_use(const program *what, int32_t index, int32_t all) {
    int32_t last = -1;
    for (int32_t i = 0; i < all; i++) {
        const int decoding = i >= what->encoder_count;
        const operation *op =
            decoding ? &what->decoder[i - what->encoder_count] : &what->encoder[i];
        if (op->out.index == index) last = i;
        for (int k = 0; k < 3; k++)
            if (op->in[k].index == index)
                last = decoding && (what->shapes[index].phase != HYPOTHESES || op->code == RECALL) ? all : i;
        if (last == all) return all;
    }
    for (int i = 0; i < what->output_count; i++)
        if (what->outputs[i].result.index == index) last = all;
    return last;
}

/* Gives registers that are never needed at the same time the same memory. A register that RECALL
 * reads needs a memory of its own in all steps. Returns how many memories there are. */
static int32_t share_memory(const program *what, int32_t *memory_of, int32_t *busy_until) {
    const int32_t all = what->encoder_count + what->decoder_count;
    int32_t count = 0;
    for (int i = 0; i < what->shape_count; i++) memory_of[i] = -1;
    for (int i = 0; i < what->decoder_count; i++) { /* first the registers that RECALL reads */
        const operation *op = &what->decoder[i];
        if (op->code != RECALL || memory_of[op->in[0].index] >= 0) continue;
        busy_until[count] = all;
        memory_of[op->in[0].index] = count++;
    }
    for (int32_t i = 0; i < all; i++) {
        const int32_t index = i < what->encoder_count
                                  ? what->encoder[i].out.index
                                  : what->decoder[i - what->encoder_count].out.index;
        if (memory_of[index] >= 0) continue;
        int32_t place = 0;
        while (place < count && busy_until[place] >= i) place++;
        if (place == count) count++;
        busy_until[place] = last_use(what, index, all);
        memory_of[index] = place;
    }
    return count;
}

workspace *new_workspace(const program *what, const arithmetic *math) {
    workspace *space = calloc(1, sizeof *space);
    if (!space) return NULL;
    space->what = what, space->math = math;
    space->registers = calloc((size_t)what->shape_count + 1, sizeof *space->registers);
    space->memory_of = calloc((size_t)what->shape_count + 1, sizeof *space->memory_of);
    space->memories = calloc((size_t)what->shape_count + 1, sizeof *space->memories);
    space->capacities = calloc((size_t)what->shape_count + 1, sizeof *space->capacities);
    int32_t *busy_until = calloc((size_t)what->shape_count + 1, sizeof *busy_until);
    space->caches = calloc((size_t)what->cache_count + 1, sizeof *space->caches);
    int64_t most = 1;
    const operation *lists[] = {what->encoder, what->decoder};
    const int32_t counts[] = {what->encoder_count, what->decoder_count};
    for (int list = 0; list < 2; list++)
        for (int i = 0; i < counts[list]; i++)
            if (lists[list][i].weights[0] >= 0 &&
                what->weights[lists[list][i].weights[0]].inputs > most)
                most = what->weights[lists[list][i].weights[0]].inputs;
    for (int i = 0; i < what->output_count; i++)
        if (what->outputs[i].result.width > most) most = what->outputs[i].result.width;
    space->scratch = malloc(SCRATCH(most));
    if (!space->registers || !space->memory_of || !space->memories || !space->capacities ||
        !busy_until || !space->caches || !space->scratch) {
        free(busy_until);
        free_workspace(space);
        return NULL;
    }
    space->memory_count = share_memory(what, space->memory_of, busy_until);
    free(busy_until);
    return space;
}

void free_workspace(workspace *space) {
    if (!space) return;
    for (int i = 0; i < space->memory_count; i++) free(space->memories[i]);
    for (int i = 0; space->caches && i < space->what->cache_count; i++) {
        for (int64_t t = 0; space->caches[i] && t < space->cache_steps; t++) free(space->caches[i][t]);
        free(space->caches[i]);
    }
    free(space->registers);
    free(space->memory_of);
    free(space->memories);
    free(space->capacities);
    free(space->caches);
    free(space->block_begins);
    free(space->sentence_of_token);
    free(space->scratch);
    free(space->scores);
    free(space->pointers);
    free(space);
}

/* Makes room for a register's rows; it and registers that share its memory may lose their data. */
int reserve(workspace *space, int32_t index, int64_t rows) {
    const int32_t place = space->memory_of[index];
    const int64_t floats = rows * space->what->shapes[index].width;
    if (floats > space->capacities[place]) {
        free(space->memories[place]);
        space->memories[place] = aligned_alloc(64, ((size_t)floats * sizeof(float) + 127) / 64 * 64);
        space->capacities[place] = space->memories[place] ? floats : 0;
    }
    space->registers[index] = space->memories[place];
    return !space->registers[index];
}

float *rows_of(workspace *space, columns place) {
    return space->registers[place.index] + place.offset;
}

int64_t stride_of(const workspace *space, columns place) {
    return space->what->shapes[place.index].width;
}

static int64_t rows_in(const workspace *space, int32_t index) {
    const shape *what = &space->what->shapes[index];
    switch (what->phase) {
    case TOKENS: return space->tokens;
    case SENTENCES: return space->sentences;
    case SLOTS: return space->sentences * what->rows;
    default: return space->hypotheses;
    }
}

static int room_for_scores(workspace *space, int64_t count) {
    if (count <= space->longest) return 0;
    free(space->scores);
    free(space->pointers);
    space->longest = count * 2;
    space->scores = aligned_alloc(64, ((size_t)space->longest * sizeof(float) + 191) / 64 * 64);
    space->pointers = malloc((size_t)space->longest * sizeof *space->pointers);
    if (space->scores && space->pointers) return 0;
    space->longest = 0;
    return 1;
}

/* ---- operations ---------------------------------------------------------------------------- */

/* Writes factor * W[token] of a packed weight to y. */
static void look_up(const weight *w, int32_t token, float factor, float *y) {
    const int64_t K = w->inputs, panel = token / PANEL, lane = token % PANEL;
    switch (w->kind) {
    case PLAIN: {
        const float *row = (const float *)w->values + token * K;
        for (int64_t k = 0; k < K; k++) y[k] = factor * row[k];
        break;
    }
    case F32: {
        const float *first = (const float *)w->values + panel * PANEL * K + lane;
        for (int64_t k = 0; k < K; k++) y[k] = factor * first[k * PANEL];
        break;
    }
    case BF16: {
        const uint16_t *first = (const uint16_t *)w->values + (panel * PANEL * ((K + 1) / 2) + lane) * 2;
        for (int64_t k = 0; k < K; k++) {
            const uint32_t bits = (uint32_t)first[k / 2 * 2 * PANEL + k % 2] << 16;
            float value;
            memcpy(&value, &bits, sizeof value);
            y[k] = factor * value;
        }
        break;
    }
    default: {
        const int8_t *first = (const int8_t *)w->values + (panel * PANEL * ((K + 3) / 4) + lane) * 4;
        const float unit = factor * w->scales[token];
        for (int64_t k = 0; k < K; k += 4, first += 4 * PANEL)
            for (int64_t i = 0; i < (K - k < 4 ? K - k : 4); i++) y[k + i] = unit * (float)first[i];
    }
    }
}

static void embed(workspace *space, const operation *op, const int32_t *tokens, int64_t rows,
                  const int64_t *begins) {
    const weight *table = &space->what->weights[op->weights[0]];
    const float *positions =
        op->weights[1] < 0 ? NULL : space->what->weights[op->weights[1]].values;
    float *y = rows_of(space, op->out);
    const int64_t stride = stride_of(space, op->out), n = op->out.width;
    int64_t sentence = 0;
    for (int64_t r = 0; r < rows; r++, y += stride) {
        look_up(table, tokens[r], op->reals[0], y);
        if (begins)
            while (r >= begins[sentence + 1]) sentence++;
        const int64_t place = (begins ? r - begins[sentence] : space->step) + op->ints[0];
        if (positions) space->math->add(1, y, 1, positions + place * n, n, y);
    }
}

static void linear(workspace *space, const operation *op, int64_t rows) {
    const int32_t bias = op->weights[1], added = op->in[1].index;
    space->math->product(&space->what->weights[op->weights[0]], rows_of(space, op->in[0]),
                         stride_of(space, op->in[0]), rows,
                         bias < 0 ? NULL : space->what->weights[bias].values,
                         added < 0 ? NULL : rows_of(space, op->in[1]),
                         added < 0 ? 0 : stride_of(space, op->in[1]), op->ints[0],
                         rows_of(space, op->out), stride_of(space, op->out), space->scratch);
}

static void binarize(const float *x, int64_t n, float *y) {
    float bound = 0;
    for (int64_t i = 0; i < n; i++) bound = fmaxf(bound, fabsf(x[i]));
    for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0 ? -0.5f * bound : 0.5f * bound;
}

static void row_wise(workspace *space, const operation *op, int64_t rows) {
    const float *x = rows_of(space, op->in[0]);
    const int64_t x_stride = stride_of(space, op->in[0]), y_stride = stride_of(space, op->out);
    float *y = rows_of(space, op->out);
    const weight *weights = space->what->weights;
    const int grouped = op->code == NORM || op->code == BINARIZE;
    const int64_t n = op->out.width, part = grouped ? n / op->ints[0] : n;
    for (int64_t r = 0; r < rows; r++, x += x_stride, y += y_stride)
        switch (op->code) {
        case NORM:
            for (int64_t i = 0; i < n; i += part)
                space->math->norm(x + i, part, weights[op->weights[0]].values,
                                  weights[op->weights[1]].values, op->reals[0], y + i);
            break;
        case BINARIZE:
            for (int64_t i = 0; i < n; i += part) binarize(x + i, part, y + i);
            break;
        case ADD:
            space->math->add(op->reals[0], x, op->reals[1],
                             rows_of(space, op->in[1]) + r * stride_of(space, op->in[1]), n, y);
            break;
        case GATE:
            space->math->gate(x, rows_of(space, op->in[1]) + r * stride_of(space, op->in[1]), n, y);
            break;
        default: space->math->activate(op->ints[0], x, n, y);
        }
}

/* Whether an operation writes all of some columns. */
static int makes(const operation *op, columns place) {
    return op->out.index == place.index && op->out.offset <= place.offset &&
           op->out.offset + op->out.width >= place.offset + place.width;
}

/* Reorders each sentence's keys into blocks of 16 tokens, [head][block][dim][16]; the last block is
 * filled up with zeros. */
static void transpose(workspace *space, const operation *op) {
    const int64_t heads = op->ints[0], width = op->in[0].width, dim = width / heads;
    const int64_t stride = stride_of(space, op->in[0]);
    const shape *from = &space->what->shapes[op->in[0].index];
    float *out = space->registers[op->out.index];
    for (int64_t s = 0; s < space->sentences; s++) {
        const int64_t begin = from->phase == SLOTS ? s * from->rows : space->begins[s];
        const int64_t n = from->phase == SLOTS ? from->rows : space->begins[s + 1] - begin;
        const int64_t blocks = (n + BLOCK - 1) / BLOCK;
        const float *keys = rows_of(space, op->in[0]) + begin * stride;
        for (int64_t h = 0; h < heads; h++, keys += dim)
            for (int64_t b = 0; b < blocks; b++, out += BLOCK * dim)
                /* BLOCK numbers of a token at a time, which are a line of the cache. */
                for (int64_t first = 0; first < dim; first += BLOCK)
                    for (int64_t i = 0; i < BLOCK; i++) {
                        const int64_t token = b * BLOCK + i;
                        for (int64_t d = first; d < dim && d < first + BLOCK; d++)
                            out[d * BLOCK + i] = token < n ? keys[token * stride + d] : 0;
                    }
    }
}

/* Returns whether the decoder's attention `op` keeps its keys and values in bf16, to read them in less
 * time. It does if they come from a product with INT8 or BF16 weights, which rounds more than that. */
static int keeps_bf16(const program *what, const operation *op) {
    if ((op->code != ATTEND_PAST && op->code != ATTEND_SOURCE) || op->ints[2]) return 0;
    const int past = op->code == ATTEND_PAST;
    const operation *list = past ? what->decoder : what->encoder;
    const int32_t count = past ? what->decoder_count : what->encoder_count;
    for (int32_t i = 0; i < count; i++)
        if (makes(&list[i], op->in[2]))
            return list[i].code == LINEAR && (what->weights[list[i].weights[0]].kind == INT8 ||
                                              what->weights[list[i].weights[0]].kind == BF16);
    return 0;
}

/* Where a sentence's keys and values are. */
typedef struct {
    const float *keys, *values;
    int64_t count, blocks, values_stride; /* in numbers */
    int bf16;
} memory;

static memory memory_of(workspace *space, const operation *op, int64_t sentence) {
    const shape *what = &space->what->shapes[op->in[2].index];
    const int64_t width = op->in[1].width;
    memory found = {.values_stride = what->width, .bf16 = keeps_bf16(space->what, op)};
    int64_t before; /* blocks of keys of the sentences before */
    if (what->phase == SLOTS) {
        found.count = what->rows;
        found.blocks = (found.count + BLOCK - 1) / BLOCK;
        before = sentence * found.blocks;
        found.values = rows_of(space, op->in[2]) + sentence * found.count * found.values_stride;
    } else {
        found.count = space->begins[sentence + 1] - space->begins[sentence];
        found.blocks = (found.count + BLOCK - 1) / BLOCK;
        before = space->block_begins[sentence];
        found.values = rows_of(space, op->in[2]) + space->begins[sentence] * found.values_stride;
    }
    found.keys = nth(found.bf16, space->registers[op->in[1].index], before * BLOCK * width);
    if (found.bf16) found.values_stride *= 2;
    return found;
}

/* y = sum of weights[j] values[j]. SIGNED and UNSIGNED are for binary attention, where a row
 * values[j] is signs times half of a bound B_j. SIGNED adds the signs of all rows; UNSIGNED adds
 * those of rows whose weights[j] B_j is at least half of the largest such product. Sums of signs
 * are exact: a sum of 0 is 0 for the next binarization. */
static void mix(workspace *space, int bf16, float *weights, int64_t n, int64_t dim, int how,
                float *y) {
    const float *const *values = space->pointers;
    float most = 0;
    if (!how) {
        space->math->mix(bf16, weights, values, n, dim, y);
        return;
    }
    for (int64_t j = 0; j < n; j++)
        most = fmaxf(most, weights[j] *= 2 * fabsf(values[j][0]));
    const float level = how == SIGNED ? 0.5f * most : most;
    memset(y, 0, (size_t)dim * sizeof *y);
    for (int64_t j = 0; j < n; j++)
        if (how == SIGNED || weights[j] - 0.5f * most >= 0)
            for (int64_t d = 0; d < dim; d++) y[d] += values[j][d] < 0 ? -1 : 1;
    for (int64_t d = 0; d < dim; d++) y[d] *= 0.5f * level;
}

/* Adds a head's attention weights to the alignment `seen`, the mean over all heads and models. */
static void show(const workspace *space, int64_t heads, const float *weights, int64_t n, float *seen) {
    const float share = 1.0f / (float)(heads * space->what->output_count);
    space->math->add(1, seen, share, weights, n, seen);
}

/* Tokens whose keys and values are fetched into the second-level cache while the head before is
 * computed: the first-level cache is too small for those of all heads. The processor itself fetches
 * ahead only within a page of memory. */
enum { SOON = 64 };

static inline void fetch_rows(int bf16, const float *rows, int64_t stride, int64_t count,
                              int64_t width) {
    for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < width; i += CACHE_LINE / (bf16 ? 2 : 4))
            __builtin_prefetch(nth(bf16, rows, j * stride + i), 0, 2);
}

/* Queries that are computed together, while the keys and values that they share are in the cache. */
enum { QUERIES = 4 * TOGETHER };

static int64_t up_to_queries(int64_t rows) { return rows < QUERIES ? rows : QUERIES; }

/* Computes attention of up to QUERIES queries, from `row` on, to one sentence, for all heads. */
static void attend(workspace *space, const operation *op, const memory *from, int64_t row,
                   int64_t queries, float *seen) {
    const int64_t heads = op->ints[0], dim = op->in[0].width / heads, read = op->in[2].width / heads;
    const int64_t q_stride = stride_of(space, op->in[0]), y_stride = stride_of(space, op->out);
    const int64_t n = from->count, room = from->blocks * BLOCK, soon = n < SOON ? n : SOON;
    const float *query = rows_of(space, op->in[0]) + row * q_stride;
    float *y = rows_of(space, op->out) + row * y_stride, *scores = space->scores;
    const int bf16 = from->bf16;
    for (int64_t h = 0; h < heads; h++, query += dim, y += read) {
        const float *values = nth(bf16, from->values, h * read);
        const float *keys = nth(bf16, from->keys, h * room * dim);
        fetch_rows(bf16, nth(bf16, keys, room * dim), 0, 1, soon * dim);
        fetch_rows(bf16, nth(bf16, values, read), from->values_stride, soon, read);
        space->math->block_dots(bf16, queries, query, q_stride, keys, n, dim,
                                op->reals[0], scores, room);
        for (int64_t i = 0; i < queries; i++) {
            space->math->softmax(scores + i * room, n);
            if (seen) show(space, heads, scores + i * room, n, seen + i * space->attention_stride);
        }
        if (!op->ints[2]) {
            space->math->mix_together(bf16, queries, scores, room, values, from->values_stride,
                                      n, read, y, y_stride);
            continue;
        }
        for (int64_t j = 0; j < n; j++) space->pointers[j] = values + j * from->values_stride;
        for (int64_t i = 0; i < queries; i++)
            mix(space, 0, scores + i * room, n, read, op->ints[2], y + i * y_stride);
    }
}

static void attend_within(workspace *space, const operation *op) {
    for (int64_t s = 0; s < space->sentences; s++) {
        const memory from = memory_of(space, op, s);
        for (int64_t r = space->begins[s]; r < space->begins[s + 1]; r += QUERIES)
            attend(space, op, &from, r, up_to_queries(space->begins[s + 1] - r), NULL);
    }
}

static void attend_source(workspace *space, const operation *op) {
    const int32_t *sentences = space->sentence_of;
    float *seen = op->ints[1] ? space->attention : NULL;
    for (int64_t r = 0, next; r < space->hypotheses; r = next) {
        const memory from = memory_of(space, op, sentences[r]);
        for (next = r; next < space->hypotheses && sentences[next] == sentences[r];) next++;
        next = r + up_to_queries(next - r);
        attend(space, op, &from, r, next - r, seen ? seen + r * space->attention_stride : NULL);
    }
}

/* Allocates a cache's memory for this step: `bytes` for each hypothesis. */
static float *remember(workspace *space, int32_t cache, int64_t bytes) {
    if (space->step >= space->cache_steps) {
        const int64_t steps = space->step * 2 + 32;
        for (int i = 0; i < space->what->cache_count; i++) {
            float **grown = realloc(space->caches[i], (size_t)steps * sizeof *grown);
            if (!grown) return NULL;
            for (int64_t t = space->cache_steps; t < steps; t++) grown[t] = NULL;
            space->caches[i] = grown;
        }
        space->cache_steps = steps;
    }
    float **place = &space->caches[cache][space->step];
    free(*place);
    *place = aligned_alloc(64, (size_t)(space->hypotheses * bytes + 127) / 64 * 64);
    return *place;
}

static int attend_past(workspace *space, const operation *op) {
    const int64_t heads = op->ints[0], width = op->in[0].width, dim = width / heads;
    const int64_t steps = space->step + 1;
    const int bf16 = keeps_bf16(space->what, op);
    float *now = remember(space, op->ints[1], 2 * width * (bf16 ? 2 : 4));
    if (!now || room_for_scores(space, steps + BLOCK)) return 1;
    for (int64_t r = 0; r < space->hypotheses; r++)
        for (int part = 0; part < 2; part++) {
            const float *from =
                rows_of(space, op->in[1 + part]) + r * stride_of(space, op->in[1 + part]);
            float *kept = (float *)nth(bf16, now, (2 * r + part) * width);
            if (bf16) space->math->to_bf16(from, width, (uint16_t *)kept);
            else memcpy(kept, from, (size_t)width * sizeof *kept);
        }
    float *const *cache = space->caches[op->ints[1]];
    const float **rows = space->pointers;
    for (int64_t r = 0; r < space->hypotheses; r++) {
        const int32_t *line = space->ancestors + r * space->ancestor_stride;
        const float *query = rows_of(space, op->in[0]) + r * stride_of(space, op->in[0]);
        float *y = rows_of(space, op->out) + r * stride_of(space, op->out);
        for (int64_t t = 0; t < steps; t++)
            rows[t] = nth(bf16, cache[t], 2 * width * (t < space->step ? line[t] : r));
        /* What the next hypothesis reads is fetched, unless this one reads it too. */
        const int32_t *next = r + 1 < space->hypotheses ? line + space->ancestor_stride : line;
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t t = 0; t < space->step; t++)
                if (next[t] != line[t])
                    fetch_rows(bf16, nth(bf16, cache[t], 2 * width * next[t] + h * dim), width,
                               2, dim);
            space->math->dots(bf16, query + h * dim, rows, steps, dim, op->reals[0], space->scores);
            space->math->softmax(space->scores, steps);
            for (int64_t t = 0; t < steps; t++) rows[t] = nth(bf16, rows[t], width);
            mix(space, bf16, space->scores, steps, dim, op->ints[2], y + h * dim);
            for (int64_t t = 0; t < steps; t++) rows[t] = nth(bf16, rows[t], dim - width);
        }
    }
    return 0;
}

/* Computes E x for each sentence; rows of E are at least as long as any sentence. */
static void mix_slots(workspace *space, const operation *op) {
    const weight *matrix = &space->what->weights[op->weights[0]];
    const int64_t slots = space->what->shapes[op->out.index].rows, stride = stride_of(space, op->in[0]);
    const int64_t y_stride = stride_of(space, op->out);
    for (int64_t s = 0; s < space->sentences; s++) {
        const float *x = rows_of(space, op->in[0]) + space->begins[s] * stride;
        float *y = rows_of(space, op->out) + s * slots * y_stride;
        space->math->mix_together(0, slots, (const float *)matrix->values, matrix->inputs, x, stride,
                                  space->begins[s + 1] - space->begins[s], op->out.width, y, y_stride);
    }
}

/* Collects pointers to the `taps` rows that a kernel reads for `row`, from `left` rows before it on.
 * Returns how many of them exist, and in `skipped` how many are missing at the beginning. */
static int64_t window(workspace *space, const operation *op, columns from, int64_t row, int64_t left,
                      int64_t taps, int64_t *skipped) {
    int64_t count = 0;
    if (space->what->shapes[op->out.index].phase == HYPOTHESES) {
        const int32_t *line = space->ancestors + row * space->ancestor_stride;
        for (int64_t t = space->step - left; t <= space->step - left + taps - 1; t++) {
            if (t < 0) continue;
            space->pointers[count++] = space->caches[op->ints[1]][t] +
                                       from.width * (t < space->step ? line[t] : row);
        }
        *skipped = left > space->step ? left - space->step : 0;
        return count;
    }
    const int64_t sentence = space->sentence_of_token[row];
    const int64_t begin = space->begins[sentence], end = space->begins[sentence + 1];
    const int64_t stride = stride_of(space, from);
    for (int64_t at = row - left; at < row - left + taps; at++)
        if (at >= begin && at < end) space->pointers[count++] = rows_of(space, from) + at * stride;
    *skipped = row - left < begin ? begin - (row - left) : 0;
    return count;
}

static int keep_rows(workspace *space, const operation *op, columns from) {
    if (space->what->shapes[op->out.index].phase != HYPOTHESES) return 0;
    float *now = remember(space, op->ints[1], from.width * (int64_t)sizeof *now);
    if (!now) return 1;
    for (int64_t r = 0; r < space->hypotheses; r++)
        memcpy(now + r * from.width, rows_of(space, from) + r * stride_of(space, from),
               (size_t)from.width * sizeof *now);
    return 0;
}

/* Returns how many rows before the current one a kernel of `taps` taps reads. */
static int64_t left_of(const workspace *space, const operation *op, int64_t taps) {
    return space->what->shapes[op->out.index].phase == HYPOTHESES ? taps - 1 : (taps + 2) / 2 - 1;
}

/* Convolves with a dynamic kernel for each row and head: the sum of the softmaxes of several kernels,
 * each times its share. weights[0] lists them: [kernels][size, share]. */
static int convolve(workspace *space, const operation *op, int64_t rows) {
    const weight *kernels = &space->what->weights[op->weights[0]];
    const float *table = kernels->values;
    const int64_t heads = op->ints[0], dim = op->out.width / heads;
    int64_t logits = 0, widest = 0;
    for (int64_t i = 0; i < kernels->outputs; i++) {
        logits += (int64_t)table[2 * i];
        if ((int64_t)table[2 * i] > widest) widest = (int64_t)table[2 * i];
    }
    const int64_t left = left_of(space, op, widest);
    if (keep_rows(space, op, op->in[1]) || room_for_scores(space, logits + 2 * widest)) return 1;
    float *taps = space->scores, *kernel = taps + logits;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = rows_of(space, op->in[0]) + r * stride_of(space, op->in[0]);
        float *y = rows_of(space, op->out) + r * stride_of(space, op->out);
        int64_t skipped;
        const int64_t count = window(space, op, op->in[1], r, left, widest, &skipped);
        for (int64_t h = 0; h < heads; h++) {
            memcpy(taps, x + h * logits, (size_t)logits * sizeof *taps);
            memset(kernel, 0, (size_t)widest * sizeof *kernel);
            int64_t first = 0;
            for (int64_t i = 0; i < kernels->outputs; i++) {
                const int64_t size = (int64_t)table[2 * i], shift = left - left_of(space, op, size);
                space->math->softmax(taps + first, size);
                space->math->add(table[2 * i + 1], taps + first, 1, kernel + shift, size, kernel + shift);
                first += size;
            }
            space->math->mix(0, kernel + skipped, space->pointers, count, dim, y + h * dim);
            for (int64_t i = 0; i < count; i++) space->pointers[i] += dim;
        }
    }
    return 0;
}

static const float *vector(const workspace *space, int32_t index) {
    return index < 0 ? NULL : space->what->weights[index].values;
}

/* Convolves with one kernel per head, which is the same for all rows: [heads][taps]. */
static int filter(workspace *space, const operation *op, int64_t rows) {
    const int64_t heads = op->ints[0], taps = op->ints[2], dim = op->out.width / heads;
    const int64_t left = left_of(space, op, taps);
    const float *kernels = vector(space, op->weights[0]);
    if (keep_rows(space, op, op->in[0]) || room_for_scores(space, taps)) return 1;
    for (int64_t r = 0; r < rows; r++) {
        float *y = rows_of(space, op->out) + r * stride_of(space, op->out);
        int64_t skipped;
        const int64_t count = window(space, op, op->in[0], r, left, taps, &skipped);
        for (int64_t h = 0; h < heads; h++) {
            space->math->mix(0, kernels + h * taps + skipped, space->pointers, count, dim, y + h * dim);
            for (int64_t i = 0; i < count; i++) space->pointers[i] += dim;
        }
    }
    return 0;
}

static int gather_taps(workspace *space, const operation *op, int64_t rows) {
    const int64_t taps = op->ints[2], width = op->in[0].width, left = left_of(space, op, taps);
    if (keep_rows(space, op, op->in[0]) || room_for_scores(space, taps)) return 1;
    for (int64_t r = 0; r < rows; r++) {
        float *y = rows_of(space, op->out) + r * stride_of(space, op->out);
        int64_t skipped;
        const int64_t count = window(space, op, op->in[0], r, left, taps, &skipped);
        memset(y, 0, (size_t)(taps * width) * sizeof *y);
        for (int64_t i = 0; i < count; i++)
            memcpy(y + (skipped + i) * width, space->pointers[i], (size_t)width * sizeof *y);
    }
    return 0;
}

/* Computes all states of a GRU or LSTM; each step at once for all sentences that are long enough. */
static int recur(workspace *space, const operation *op) {
    const int cells = op->ints[0] & CELLS;
    const int64_t width = op->out.width, n = cells ? width / 2 : width, many = space->sentences;
    const int64_t gates_width = op->in[0].width;
    float *memory = malloc((size_t)(many * (width + n + gates_width)) * sizeof *memory + 64);
    if (!memory) return 1;
    float *states = memory, *now = states + many * width, *gates = now + many * n;
    memset(states, 0, (size_t)(many * width) * sizeof *states);
    for (int64_t t = 0;; t++) {
        int64_t active = 0;
        for (int64_t s = 0; s < many; s++)
            if (t < space->begins[s + 1] - space->begins[s])
                memcpy(now + active++ * n, states + s * width, (size_t)n * sizeof *now);
        if (!active) break;
        space->math->product(&space->what->weights[op->weights[0]], now, n, active,
                             vector(space, op->weights[1]), NULL, 0, NONE, gates, gates_width, space->scratch);
        for (int64_t s = 0, a = 0; s < many; s++) {
            const int64_t length = space->begins[s + 1] - space->begins[s];
            if (t >= length) continue;
            const int64_t row = space->begins[s] + (op->ints[0] & BACKWARDS ? length - 1 - t : t);
            const float *inputs = rows_of(space, op->in[0]) + row * stride_of(space, op->in[0]);
            const float *hiddens = gates + a++ * gates_width;
            float *state = states + s * width;
            if (cells) space->math->lstm(inputs, hiddens, state + n, n, state);
            else space->math->gru(inputs, hiddens, state, n, state);
            memcpy(rows_of(space, op->out) + row * stride_of(space, op->out), state,
                   (size_t)width * sizeof *state);
        }
    }
    free(memory);
    return 0;
}

static void pick(workspace *space, const operation *op) {
    for (int64_t s = 0; s < space->sentences; s++) {
        const int64_t row = op->ints[0] ? space->begins[s] : space->begins[s + 1] - 1;
        memcpy(rows_of(space, op->out) + s * stride_of(space, op->out),
               rows_of(space, op->in[0]) + row * stride_of(space, op->in[0]),
               (size_t)op->out.width * sizeof(float));
    }
}

static void recall(workspace *space, const operation *op) {
    const size_t size = (size_t)op->out.width * sizeof(float);
    for (int64_t r = 0; r < space->hypotheses; r++) {
        float *y = rows_of(space, op->out) + r * stride_of(space, op->out);
        if (space->step) {
            const int64_t parent = space->ancestors[r * space->ancestor_stride + space->step - 1];
            memcpy(y, rows_of(space, op->in[0]) + parent * stride_of(space, op->in[0]), size);
        } else if (op->in[1].index < 0) {
            memset(y, 0, size);
        } else {
            memcpy(y, rows_of(space, op->in[1]) + space->sentence_of[r] * stride_of(space, op->in[1]), size);
        }
    }
}

/* One step of a GRU or of an LSTM. */
static void advance(workspace *space, const operation *op) {
    void (*step)(const float *, const float *, const float *, int64_t, float *) =
        op->code == LSTM ? space->math->lstm : space->math->gru;
    for (int64_t r = 0; r < space->hypotheses; r++)
        step(rows_of(space, op->in[0]) + r * stride_of(space, op->in[0]),
             rows_of(space, op->in[1]) + r * stride_of(space, op->in[1]),
             rows_of(space, op->in[2]) + r * stride_of(space, op->in[2]), op->in[2].width,
             rows_of(space, op->out) + r * stride_of(space, op->out));
}

/* Sums softmax_j(v . tanh(q + key_j)) value_j. A bias of the scores would have no effect, because it
 * would be the same for all j. */
static void attend_additively(workspace *space, const operation *op) {
    const float *v = vector(space, op->weights[0]);
    const int64_t keys_stride = stride_of(space, op->in[1]), values_stride = stride_of(space, op->in[2]);
    for (int64_t r = 0; r < space->hypotheses; r++) {
        const int64_t sentence = space->sentence_of[r], begin = space->begins[sentence];
        const int64_t n = space->begins[sentence + 1] - begin;
        const float *query = rows_of(space, op->in[0]) + r * stride_of(space, op->in[0]);
        const float *keys = rows_of(space, op->in[1]) + begin * keys_stride;
        const float *values = rows_of(space, op->in[2]) + begin * values_stride;
        for (int64_t i = 0; i < n; i++) {
            space->scores[i] = space->math->additive(keys + i * keys_stride, query, v, op->in[0].width);
            space->pointers[i] = values + i * values_stride;
        }
        space->math->softmax(space->scores, n);
        space->math->mix(0, space->scores, space->pointers, n, op->out.width,
                         rows_of(space, op->out) + r * stride_of(space, op->out));
        if (space->attention && op->ints[1])
            show(space, 1, space->scores, n, space->attention + r * space->attention_stride);
    }
}

/* ---- programs ------------------------------------------------------------------------------ */

static int run(workspace *space, const operation *op, int encoding) {
    const int64_t rows = rows_in(space, op->out.index);
    switch (op->code) {
    case EMBED:
        embed(space, op, encoding ? space->words : space->newest, rows,
              encoding ? space->begins : NULL);
        return 0;
    case LINEAR: linear(space, op, rows); return 0;
    case TRANSPOSE: transpose(space, op); return 0;
    case ATTEND: attend_within(space, op); return 0;
    case ATTEND_PAST: return attend_past(space, op);
    case ATTEND_SOURCE: attend_source(space, op); return 0;
    case MIX: mix_slots(space, op); return 0;
    case CONVOLVE: return convolve(space, op, rows);
    case TAPS: return gather_taps(space, op, rows);
    case RECUR: return recur(space, op);
    case PICK: pick(space, op); return 0;
    case RECALL: recall(space, op); return 0;
    case FILTER: return filter(space, op, rows);
    case GRU:
    case LSTM: advance(space, op); return 0;
    case ADDITIVE: attend_additively(space, op); return 0;
    default: row_wise(space, op, rows); return 0;
    }
}

/* Returns whether an operation before the i-th one of the decoder attends to the same keys (`part` 1) or
 * values (2) of the source. */
static int is_read_before(const program *what, int32_t i, int part) {
    const columns place = what->decoder[i].in[part];
    for (int32_t j = 0; j < i; j++) {
        const operation *op = &what->decoder[j];
        if (op->code == ATTEND_SOURCE && op->in[part].index == place.index &&
            op->in[part].offset == place.offset)
            return 1;
    }
    return 0;
}

/* Rounds the source's keys and values that the decoder reads in bf16. They are rounded in place: each
 * row of values still begins where it did. */
static void round_source(workspace *space, int64_t blocks) {
    const program *what = space->what;
    for (int32_t i = 0; i < what->decoder_count; i++) {
        const operation *op = &what->decoder[i];
        if (op->code != ATTEND_SOURCE || !keeps_bf16(what, op)) continue;
        const shape *from = &what->shapes[op->in[2].index];
        const int64_t slots = (from->rows + BLOCK - 1) / BLOCK;
        const int64_t count = BLOCK * (from->phase == SLOTS ? space->sentences * slots : blocks);
        float *keys = space->registers[op->in[1].index], *values = rows_of(space, op->in[2]);
        if (!is_read_before(what, i, 1))
            space->math->to_bf16(keys, count * op->in[1].width, (uint16_t *)keys);
        for (int64_t r = 0; !is_read_before(what, i, 2) && r < rows_in(space, op->in[2].index); r++)
            space->math->to_bf16(values + r * from->width, op->in[2].width,
                                 (uint16_t *)(values + r * from->width));
    }
}

int encode(workspace *space) {
    int64_t longest = 0, blocks = 0;
    free(space->block_begins);
    free(space->sentence_of_token);
    space->block_begins = malloc((size_t)(space->sentences + 1) * sizeof *space->block_begins);
    space->sentence_of_token = malloc((size_t)space->tokens * sizeof *space->sentence_of_token + 1);
    if (!space->block_begins || !space->sentence_of_token) return 1;
    for (int64_t s = 0; s < space->sentences; s++) {
        const int64_t n = space->begins[s + 1] - space->begins[s];
        space->block_begins[s] = blocks;
        for (int64_t i = space->begins[s]; i < space->begins[s + 1]; i++)
            space->sentence_of_token[i] = (int32_t)s;
        blocks += (n + BLOCK - 1) / BLOCK;
        if (n > longest) longest = n;
    }
    space->block_begins[space->sentences] = blocks;
    if (room_for_scores(space, QUERIES * (longest + BLOCK))) return 1;
    for (int i = 0; i < space->what->encoder_count; i++) {
        const operation *op = &space->what->encoder[i];
        int64_t rows = rows_in(space, op->out.index);
        if (op->code == TRANSPOSE) { /* whole blocks, one after another */
            const shape *from = &space->what->shapes[op->in[0].index];
            rows = BLOCK * (from->phase == SLOTS
                                ? space->sentences * ((from->rows + BLOCK - 1) / BLOCK)
                                : blocks);
            if (from->phase == SLOTS && room_for_scores(space, QUERIES * (from->rows + BLOCK))) return 1;
        }
        if (reserve(space, op->out.index, rows) || run(space, op, 1)) return 1;
    }
    round_source(space, blocks);
    return 0;
}

int decode(workspace *space) {
    if (space->attention)
        memset(space->attention, 0,
               (size_t)(space->hypotheses * space->attention_stride) * sizeof *space->attention);
    for (int i = 0; i < space->what->decoder_count; i++) {
        const operation *op = &space->what->decoder[i];
        if (reserve(space, op->out.index, space->hypotheses) || run(space, op, 0)) return 1;
    }
    return 0;
}
