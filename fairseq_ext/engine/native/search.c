#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOGIT_ROWS = 24 };

/* A way to go on from a hypothesis. */
typedef struct {
    float total;
    int32_t parent, token;
} candidate;

/* What happened at one step: of each row its newest token, its score so far, and where it looked. */
typedef struct {
    int32_t *fed;
    float *total, *attention;
} record;

/* A sentence that is being translated. */
typedef struct {
    int32_t id, rows, first, finished;
    int64_t longest; /* target tokens without </s> */
} progress;

typedef struct {
    workspace *space;
    const rules *how;
    const int32_t *prefixes;
    const int64_t *prefix_begins;
    results *out;
    progress *open;
    int64_t open_count, most_rows, steps, longest_source;
    record *records;      /* [steps] */
    int32_t *lines[2];    /* ancestors, [most_rows][stride], now and next */
    int64_t stride;
    int32_t *sentence_of; /* [most_rows] */
    float *logits;
    best *found;          /* [most_rows][candidates] */
    float *normalizers;   /* [most_rows] */
    candidate *candidates, *active;
} search;

static int grow(void **memory, int64_t *room, int64_t wanted, size_t size) {
    if (wanted <= *room) return 0;
    const int64_t more = wanted * 2;
    void *grown = realloc(*memory, (size_t)more * size);
    if (!grown) return 1;
    *memory = grown, *room = more;
    return 0;
}

/* ---- results ------------------------------------------------------------------------------- */

/* The translation that ends with </s> after `row` of step `step`. */
static int keep(search *run, const progress *one, int64_t step, int32_t row, float total) {
    results *out = run->out;
    const rules *how = run->how;
    const int64_t length = step + 1;
    int64_t attention_room = out->attention_room, token_room = out->length_room;
    if (grow((void **)&out->found, &out->room, out->count + 1, sizeof *out->found) ||
        grow((void **)&out->tokens, &token_room, out->length + length, sizeof *out->tokens) ||
        grow((void **)&out->scores, &out->length_room, out->length + length, sizeof *out->scores))
        return 1;
    const workspace *space = run->space;
    const int64_t columns =
        how->attention ? space->begins[one->id + 1] - space->begins[one->id] : 0;
    if (grow((void **)&out->attention, &attention_room, out->attention_length + length * columns,
             sizeof *out->attention))
        return 1;
    out->attention_room = attention_room;
    translation *kept = &out->found[out->count++];
    *kept = (translation){one->id, (int32_t)length, total, (int32_t)columns, out->length,
                          out->attention_length};
    if (!isnan(how->lenpen)) kept->score = total / powf((float)length, how->lenpen);
    const int32_t *line = run->lines[0] + row * run->stride;
    float after = total;
    for (int64_t t = step; t >= 0; t--) {
        const record *then = &run->records[t];
        const int32_t at = t < step ? line[t] : row;
        out->tokens[kept->first + t] =
            t < step ? run->records[t + 1].fed[t + 1 < step ? line[t + 1] : row] : space->what->eos;
        out->scores[kept->first + t] = after - then->total[at];
        after = then->total[at];
        if (columns)
            memcpy(out->attention + kept->attention + t * columns,
                   then->attention + at * run->longest_source, (size_t)columns * sizeof(float));
    }
    out->length += length;
    out->attention_length += length * columns;
    return 0;
}

/* ---- a step -------------------------------------------------------------------------------- */

/* The best tokens of every row, and the logarithm of the sum over all of them. */
static void rank(search *run, int64_t step, int64_t per_row) {
    workspace *space = run->space;
    const program *what = space->what;
    const weight *output = &what->weights[what->output_weight];
    const float *bias = what->output_bias < 0 ? NULL : what->weights[what->output_bias].values;
    const int64_t vocabulary = output->outputs, stride = stride_of(space, what->result);
    const float *features = rows_of(space, what->result);
    const int32_t barred[] = {what->pad, step < run->how->min_len ? what->eos : -1, -1};
    for (int64_t row = 0; row < space->hypotheses; row += LOGIT_ROWS) {
        const int64_t left = space->hypotheses - row, many = left < LOGIT_ROWS ? left : LOGIT_ROWS;
        space->math->product(output, features + row * stride, stride, many, bias, NULL, 0, NONE,
                             run->logits, vocabulary, space->scratch);
        for (int64_t r = 0; r < many; r++) {
            float *logits = run->logits + r * vocabulary;
            if (run->how->temperature != 1)
                space->math->add(1 / run->how->temperature, logits, 0, logits, vocabulary, logits);
            /* An unknown word's penalty changes its rank but not the normalizer. */
            const float unknown = logits[what->unk];
            best *found = run->found + (row + r) * per_row;
            run->normalizers[row + r] =
                space->math->largest(logits, vocabulary, barred, (int)per_row, found);
            if (run->how->unkpen != 0) {
                logits[what->unk] = unknown - run->how->unkpen;
                space->math->largest(logits, vocabulary, barred, (int)per_row, found);
            }
        }
    }
}

static float logit_of(search *run, int64_t row, int32_t token) {
    /* Only forced tokens need this: one row of the output layer. */
    workspace *space = run->space;
    const program *what = space->what;
    const float *bias = what->output_bias < 0 ? NULL : what->weights[what->output_bias].values;
    space->math->product(&what->weights[what->output_weight],
                         rows_of(space, what->result) + row * stride_of(space, what->result),
                         stride_of(space, what->result), 1, bias, NULL, 0, NONE, run->logits, 0,
                         space->scratch);
    return run->logits[token] / run->how->temperature;
}

static int better(const void *one, const void *other) {
    const candidate *a = one, *b = other;
    if (a->total != b->total) return a->total < b->total ? 1 : -1;
    if (a->parent != b->parent) return a->parent < b->parent ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

/* The candidates of a sentence, best first; returns how many. */
static int64_t propose(search *run, const progress *one, int64_t step, int64_t per_row) {
    const program *what = run->space->what;
    const record *now = &run->records[step];
    const int64_t forced_count =
        run->prefixes ? run->prefix_begins[one->id + 1] - run->prefix_begins[one->id] : 0;
    int32_t forced = -1;
    if (step >= one->longest) forced = what->eos;
    else if (step < forced_count) forced = run->prefixes[run->prefix_begins[one->id] + step];
    int64_t count = 0;
    for (int32_t row = one->first; row < one->first + one->rows; row++) {
        const float base = now->total[row], normalizer = run->normalizers[row];
        if (forced >= 0) {
            float logit = logit_of(run, row, forced);
            if (forced == what->unk) logit -= run->how->unkpen;
            run->candidates[count++] = (candidate){logit - normalizer + base, row, forced};
            continue;
        }
        const best *found = run->found + row * per_row;
        for (int64_t i = 0; i < per_row && found[i].token >= 0; i++)
            run->candidates[count++] =
                (candidate){found[i].value - normalizer + base, row, found[i].token};
    }
    qsort(run->candidates, (size_t)count, sizeof *run->candidates, better);
    return count < per_row ? count : per_row;
}

/* Finishes what ends, and writes the hypotheses that go on; returns how many, or -1: no memory. */
static int64_t advance(search *run, progress *one, int64_t step, int64_t per_row, candidate *active) {
    const int64_t count = propose(run, one, step, per_row);
    const int32_t beam = run->how->beam;
    int64_t going = 0;
    for (int64_t i = 0; i < count; i++) {
        const candidate *next = &run->candidates[i];
        if (next->token == run->space->what->eos) {
            if (i < beam && one->finished < beam && next->total > -INFINITY) {
                if (keep(run, one, step, next->parent, next->total)) return -1;
                one->finished++;
            }
        } else if (going < beam && next->total > -INFINITY) {
            active[going++] = *next;
        }
    }
    return one->finished >= beam || step >= one->longest ? 0 : going;
}

static int new_record(search *run, int64_t step) {
    if (step >= run->steps) {
        const int64_t steps = step * 2 + 32;
        record *grown = realloc(run->records, (size_t)steps * sizeof *grown);
        if (!grown) return 1;
        memset(grown + run->steps, 0, (size_t)(steps - run->steps) * sizeof *grown);
        run->records = grown, run->steps = steps;
    }
    record *now = &run->records[step];
    const size_t rows = (size_t)run->most_rows;
    now->fed = malloc(rows * sizeof *now->fed);
    now->total = malloc(rows * sizeof *now->total);
    now->attention =
        run->how->attention ? malloc(rows * (size_t)run->longest_source * sizeof(float)) : NULL;
    return !now->fed || !now->total || (run->how->attention && !now->attention);
}

static int widen_lines(search *run, int64_t step) {
    if (step < run->stride) return 0;
    const int64_t stride = run->stride * 2;
    for (int i = 0; i < 2; i++) {
        int32_t *wider = malloc((size_t)(run->most_rows * stride) * sizeof *wider);
        if (!wider) return 1;
        for (int64_t r = 0; r < run->most_rows; r++)
            memcpy(wider + r * stride, run->lines[i] + r * run->stride,
                   (size_t)run->stride * sizeof *wider);
        free(run->lines[i]);
        run->lines[i] = wider;
    }
    run->stride = stride;
    return 0;
}

/* One step of all open sentences; returns -1 without memory. */
static int one_step(search *run, int64_t step, int64_t per_row) {
    workspace *space = run->space;
    record *now = &run->records[step];
    space->step = step, space->newest = now->fed, space->sentence_of = run->sentence_of;
    space->ancestors = run->lines[0], space->ancestor_stride = run->stride;
    space->attention = now->attention, space->attention_stride = run->longest_source;
    if (decode(space)) return -1;
    rank(run, step, per_row);
    if (new_record(run, step + 1) || widen_lines(run, step + 1)) return -1;
    record *next = &run->records[step + 1];
    int64_t rows = 0, open = 0;
    for (int64_t i = 0; i < run->open_count; i++) {
        progress one = run->open[i];
        const int64_t going = advance(run, &one, step, per_row, run->active);
        if (going < 0) return -1;
        if (!going) continue;
        one.first = (int32_t)rows, one.rows = (int32_t)going;
        for (int64_t g = 0; g < going; g++, rows++) {
            const candidate *chosen = &run->active[g];
            int32_t *line = run->lines[1] + rows * run->stride;
            memcpy(line, run->lines[0] + chosen->parent * run->stride, (size_t)step * sizeof *line);
            line[step] = chosen->parent;
            next->fed[rows] = chosen->token;
            next->total[rows] = chosen->total;
            run->sentence_of[rows] = one.id;
        }
        run->open[open++] = one;
    }
    int32_t *lines = run->lines[0];
    run->lines[0] = run->lines[1], run->lines[1] = lines;
    run->open_count = open;
    space->hypotheses = rows;
    return 0;
}

static int begin(search *run, int64_t per_row) {
    workspace *space = run->space;
    const int64_t sentences = space->sentences;
    const int64_t vocabulary = space->what->weights[space->what->output_weight].outputs;
    const size_t rows = (size_t)run->most_rows;
    run->stride = 64;
    run->open = malloc((size_t)sentences * sizeof *run->open);
    run->sentence_of = malloc(rows * sizeof *run->sentence_of);
    run->logits = malloc((size_t)(LOGIT_ROWS * vocabulary) * sizeof *run->logits);
    run->found = malloc(rows * (size_t)per_row * sizeof *run->found);
    run->normalizers = malloc(rows * sizeof *run->normalizers);
    run->candidates = malloc((size_t)(run->how->beam * per_row) * sizeof *run->candidates);
    run->active = malloc((size_t)run->how->beam * sizeof *run->active);
    for (int i = 0; i < 2; i++)
        run->lines[i] = malloc(rows * (size_t)run->stride * sizeof *run->lines[i]);
    if (!run->open || !run->sentence_of || !run->logits || !run->found || !run->normalizers ||
        !run->candidates || !run->active || !run->lines[0] || !run->lines[1] || new_record(run, 0))
        return 1;
    for (int64_t s = 0; s < sentences; s++) {
        const int64_t n = space->begins[s + 1] - space->begins[s];
        int64_t longest = (int64_t)((double)run->how->max_len_a * (double)n) + run->how->max_len_b;
        if (longest > run->how->most) longest = run->how->most;
        run->open[s] = (progress){(int32_t)s, 1, (int32_t)s, 0, longest};
        run->records[0].fed[s] = space->what->bos;
        run->records[0].total[s] = 0;
        run->sentence_of[s] = (int32_t)s;
    }
    run->open_count = space->hypotheses = sentences;
    return 0;
}

static void end(search *run) {
    for (int64_t t = 0; t < run->steps; t++) {
        free(run->records[t].fed);
        free(run->records[t].total);
        free(run->records[t].attention);
    }
    free(run->records);
    free(run->open);
    free(run->sentence_of);
    free(run->logits);
    free(run->found);
    free(run->normalizers);
    free(run->candidates);
    free(run->active);
    free(run->lines[0]);
    free(run->lines[1]);
}

int translate(workspace *space, const rules *how, const int32_t *words, const int64_t *begins,
              int64_t sentences, const int32_t *prefixes, const int64_t *prefix_begins,
              results *out) {
    out->count = out->length = out->attention_length = 0;
    if (!sentences) return 0;
    search run = {.space = space, .how = how, .out = out};
    run.prefixes = prefixes, run.prefix_begins = prefix_begins;
    const int64_t per_row = 2 * (int64_t)how->beam; /* half of them may end */
    run.most_rows = sentences * how->beam;
    for (int64_t s = 0; s < sentences; s++)
        if (begins[s + 1] - begins[s] > run.longest_source)
            run.longest_source = begins[s + 1] - begins[s];
    space->words = words, space->begins = begins, space->sentences = sentences;
    space->tokens = begins[sentences];
    int failed = encode(space) || begin(&run, per_row);
    for (int64_t step = 0; !failed && run.open_count; step++) failed = one_step(&run, step, per_row);
    end(&run);
    return failed != 0;
}
