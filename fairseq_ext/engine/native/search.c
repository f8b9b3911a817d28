#include "constraints.h"
#include "sampling.h"
#include "shortlist.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows whose logits are computed at once. Wide weights do not stay in a cache, so they are read for
 * more rows; logits of fewer rows stay in a cache until they are ranked. */
enum { LOGIT_ROWS = 30, LOGIT_ROWS_OF_WIDE_WEIGHTS = 90 };

/* A hypothesis continued by one token. */
typedef struct {
    float total;
    int32_t parent, token;
} candidate;

/* A candidate of a constrained search. High keys come first; equal keys are sorted by place. */
typedef struct {
    candidate next;
    double key;
    int32_t place, bank;
} banked;

/* What happened at one step: each row's newest token, the sum of its log-probabilities so far, and
 * its attention. */
typedef struct {
    int32_t *fed;
    float *total, *attention;
} record;

/* A sentence that is being translated. */
typedef struct {
    int32_t id, rows, first, finished;
} progress;

typedef struct {
    workspace *space;
    const rules *how;
    const int32_t *prefixes;
    const int64_t *prefix_begins, *numbers;
    results *out;
    progress *open;
    int64_t open_count, most_rows, steps, longest_source;
    record *records;      /* [steps] */
    int32_t *lines[2];    /* ancestors, [most_rows][stride], now and next */
    int64_t stride;
    int32_t *sentence_of; /* [most_rows] */
    float *logits;        /* [logit_rows][vocabulary]; twice that for several models */
    best *found;          /* [rows][per_row + most_next]: the tokens that may follow a row */
    best *pool;           /* [vocabulary], for sampling */
    choices *choices;     /* [choice_count][models]; count is 1 if nothing is listed */
    int64_t choice_count;
    int32_t *barred;      /* [barred_room] */
    int64_t barred_room;
    candidate *candidates, *active;
    /* Only in a constrained search; otherwise NULL and 0: */
    constraints *required;    /* [sentences] */
    constraint_node *nodes;   /* of all sentences */
    int32_t *states[2];       /* [most_rows][state_size], now and next */
    int32_t *next, *advanced; /* [most_next] tokens, and a candidate's state */
    banked *banked;
    int64_t state_size, most_next;
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

/* Stores the translation that ends with </s> after `row` of step `step`. */
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
    const float from = how->length_offset;
    if (!isnan(how->lenpen))
        kept->score = total / powf((from + (float)length) / (from + 1), how->lenpen);
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

/* Returns how many next tokens of a row to find. In beam search: twice the beam, because up to `beam`
 * of a sentence's best candidates may be </s>, one from each row. In sampling: a single token, but
 * `beam` tokens at the first step, at which a sentence has one row. */
static int64_t per_row(const rules *how, int64_t step) {
    if (how->sampling) return step ? 1 : how->beam;
    return 2 * (int64_t)how->beam;
}

/* The most tokens of a sentence's translation, without </s>. */
static int64_t longest(const search *run, int32_t sentence) {
    const rules *how = run->how;
    const int64_t n = run->space->begins[sentence + 1] - run->space->begins[sentence];
    int64_t most = n;
    if (!how->match_source) most = (int64_t)(how->max_len_a * (double)n + (double)how->max_len_b);
    return most < how->most ? most : how->most;
}

/* The only token that may come next, or -1 if several may. */
static int32_t forced_token(const search *run, int32_t sentence, int64_t step) {
    if (step >= longest(run, sentence)) return run->space->what->eos;
    if (!run->prefixes) return -1;
    const int64_t at = run->prefix_begins[sentence] + step;
    return at < run->prefix_begins[sentence + 1] ? run->prefixes[at] : -1;
}

static best *found_of(const search *run, int64_t row, int64_t step) {
    return run->found + row * (per_row(run->how, step) + run->most_next);
}

static const int32_t *state_of(const search *run, int64_t row) {
    return run->states[0] + row * run->state_size;
}

/* Whether unmet constraints forbid a row to end; they never do at the first step, as in fairseq. */
static int lacks_words(const search *run, int64_t row, int64_t step) {
    return run->required && step &&
           !are_met(&run->required[run->sentence_of[row]], state_of(run, row));
}

/* The token that a row, or its ancestor, was fed at step t. */
static int32_t word(const search *run, int64_t row, int64_t step, int64_t t) {
    return run->records[t].fed[t < step ? run->lines[0][row * run->stride + t] : row];
}

static const choices *choices_of(const search *run, int32_t sentence) {
    return &run->choices[run->choice_count > 1 ? sentence * run->space->what->output_count : 0];
}

/* Writes the indices of tokens that must not follow a row, and then -1. */
static void bar(search *run, int64_t row, int64_t step, const choices *from) {
    const rules *how = run->how;
    const program *what = run->space->what;
    int32_t *next = run->barred, place;
#define BAR(token)                                                                                 \
    if ((place = place_of(from, token)) >= 0) *next++ = place
    BAR(what->pad);
    if (step < how->min_len || how->match_source || lacks_words(run, row, step)) BAR(what->eos);
    /* Tokens that would repeat an n-gram; the start symbol belongs to no n-gram. */
    for (int64_t end = how->no_repeat; how->no_repeat && end <= step; end++) {
        int64_t back = 1;
        while (back < how->no_repeat &&
               word(run, row, step, end - back) == word(run, row, step, step + 1 - back))
            back++;
        if (back == how->no_repeat) BAR(word(run, row, step, end));
    }
#undef BAR
    *next = -1;
}

/* Draws next tokens for a row; `place` is the row's number among the rows of its sentence. */
static void sample(search *run, int64_t row, int64_t step, int64_t place, float *logits, best *found) {
    const int32_t sentence = run->sentence_of[row];
    const choices *some = choices_of(run, sentence);
    const int64_t tokens = some->output.outputs;
    const int32_t unk = place_of(some, run->space->what->unk);
    const uint64_t number = (uint64_t)(run->numbers ? run->numbers[sentence] : sentence);
    run->space->math->softmax(logits, tokens);
    for (const int32_t *one = run->barred; *one >= 0; one++) logits[*one] = 0;
    if (unk >= 0) logits[unk] *= expf(-run->how->unkpen);
    const pool from = truncated(run->how, logits, tokens, run->pool);
    for (int64_t i = 0; from.count && i < per_row(run->how, step); i++) {
        const best *token =
            drawn(from, uniform(run->how->seed, number, (uint64_t)step, (uint64_t)(place + i)));
        found[i] = (best){logf(token->value), token->token};
    }
}

/* Writes the next tokens of a row's constraints, with their log-probabilities, to `found`. */
static void rank_next(const search *run, int64_t row, const choices *some, const float *logits,
                      float normalizer, best *found) {
    const int32_t count =
        next_tokens(&run->required[run->sentence_of[row]], state_of(run, row), run->next);
    for (int32_t i = 0; i < count; i++) {
        const int32_t place = place_of(some, run->next[i]);
        const int32_t *barred = run->barred;
        while (*barred >= 0 && *barred != place) barred++;
        if (place >= 0 && *barred < 0) *found++ = (best){logits[place] - normalizer, run->next[i]};
    }
}

/* Finds the best tokens that may follow a row, best first, with their log-probabilities. `logits` are
 * those of a single model, or the logarithms of the mean probabilities of several models. */
static void rank_row(search *run, int64_t row, int64_t step, int64_t place, float *logits) {
    const rules *how = run->how;
    const arithmetic *math = run->space->math;
    const choices *some = choices_of(run, run->sentence_of[row]);
    const int64_t tokens = some->output.outputs, many = per_row(how, step);
    const int32_t unk = place_of(some, run->space->what->unk);
    const int32_t forced = forced_token(run, run->sentence_of[row], step);
    best *found = found_of(run, row, step);
    for (int64_t i = 0; i < many + run->most_next; i++) found[i] = (best){-INFINITY, -1};
    if (forced == run->space->what->eos && lacks_words(run, row, step)) return;
    if (forced < 0) bar(run, row, step, some);
    const int32_t *barred = forced < 0 ? run->barred : NULL;
    const int count = forced >= 0 || how->sampling ? 1 : (int)many;
    const float normalizer = math->largest(logits, tokens, barred, count, found);
    if (forced >= 0) {
        const int32_t at = place_of(some, forced);
        float value = logits[at] - (at == unk ? how->unkpen : 0) - normalizer;
        if (how->match_source && step >= longest(run, run->sentence_of[row])) value = 0;
        for (int64_t i = 0; i < (how->sampling ? many : 1); i++) found[i] = (best){value, forced};
        return;
    }
    if (how->unkpen != 0 && unk >= 0 && !how->sampling) { /* the normalizer stays the same */
        logits[unk] -= how->unkpen;
        math->largest(logits, tokens, barred, count, found);
    }
    for (int i = 0; i < count; i++) found[i].value -= normalizer;
    if (how->sampling) sample(run, row, step, place, logits, found);
    for (int64_t i = 0; some->tokens && i < many; i++)
        if (found[i].token >= 0) found[i].token = some->tokens[found[i].token];
    if (run->required) rank_next(run, row, some, logits, normalizer, found + many);
}

static int64_t logit_rows(const program *what) {
    const int32_t kind = what->weights[what->outputs[0].weight].kind;
    return kind == F32 || kind == BF16 ? LOGIT_ROWS_OF_WIDE_WEIGHTS : LOGIT_ROWS;
}

/* Returns how many rows from this one on may end in the same tokens, at most `logit_rows`. */
static int64_t alike(const search *run, int64_t row) {
    const choices *some = choices_of(run, run->sentence_of[row]);
    const int64_t most = logit_rows(run->space->what);
    int64_t many = 1;
    while (many < most && row + many < run->space->hypotheses &&
           choices_of(run, run->sentence_of[row + many]) == some)
        many++;
    return many;
}

/* Computes the logits of model number `layer` for `many` rows with the same choices. */
static void score(search *run, int64_t layer, const choices *some, int64_t row, int64_t many,
                  float *logits) {
    workspace *space = run->space;
    const columns from = space->what->outputs[layer].result;
    const int64_t stride = stride_of(space, from), tokens = some->output.outputs;
    const float temperature = run->how->temperature;
    space->math->product(&some->output, rows_of(space, from) + row * stride, stride, many, some->bias,
                         NULL, 0, NONE, logits, tokens, space->scratch);
    for (int64_t r = 0; temperature != 1 && r < many; r++, logits += tokens)
        space->math->add(1 / temperature, logits, 0, logits, tokens, logits);
}

/* Replaces the first model's logits by the logarithm of the mean probability over all models. The
 * other models' logits are computed behind these. */
static void vote(search *run, const choices *some, int64_t row, int64_t many) {
    const arithmetic *math = run->space->math;
    const int64_t tokens = some->output.outputs, models = run->space->what->output_count;
    const float share = logf((float)models);
    float *others = run->logits + many * tokens;
    for (int64_t model = 1; model < models; model++) {
        score(run, model, some + model, row, many, others);
        for (int64_t r = 0; r < many; r++) {
            float *mean = run->logits + r * tokens, *its = others + r * tokens, first = 0;
            best top;
            if (model == 1) first = math->largest(mean, tokens, NULL, 1, &top) + share;
            math->unite(mean, first, its, math->largest(its, tokens, NULL, 1, &top) + share, tokens);
        }
    }
}

/* Finds the best next tokens of every row. */
static int rank(search *run, int64_t step) {
    workspace *space = run->space;
    if (grow((void **)&run->barred, &run->barred_room, step + 4, sizeof *run->barred)) return 1;
    int64_t place = 0;
    for (int64_t row = 0, many; row < space->hypotheses; row += many) {
        const choices *some = choices_of(run, run->sentence_of[row]);
        const int64_t tokens = some->output.outputs;
        many = alike(run, row);
        score(run, 0, some, row, many, run->logits);
        if (space->what->output_count > 1) vote(run, some, row, many);
        for (int64_t r = row; r < row + many; r++) {
            place = r && run->sentence_of[r] == run->sentence_of[r - 1] ? place + 1 : 0;
            rank_row(run, r, step, place, run->logits + (r - row) * tokens);
        }
    }
    return 0;
}

static int better(const void *one, const void *other) {
    const candidate *a = one, *b = other;
    if (a->total != b->total) return a->total < b->total ? 1 : -1;
    if (a->parent != b->parent) return a->parent < b->parent ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

/* Appends `many` tokens of each row's `found`, from `first` on, to `count` candidates. */
static int64_t gather(search *run, const progress *one, int64_t step, int64_t first, int64_t many,
                      int64_t count) {
    for (int32_t row = one->first; row < one->first + one->rows; row++) {
        const best *found = found_of(run, row, step) + first;
        for (int64_t i = 0; i < many && found[i].token >= 0; i++) {
            const float total = found[i].value + run->records[step].total[row];
            if (!isnan(total)) /* NaN has no place in an order; it comes from extreme weights */
                run->candidates[count++] = (candidate){total, row, found[i].token};
        }
    }
    return count;
}

static int by_key(const void *one, const void *other) {
    const banked *a = one, *b = other;
    if (a->key != b->key) return a->key < b->key ? 1 : -1;
    return a->place - b->place;
}

/* Sorts `count` candidates of a sentence for a constrained search and removes duplicates; returns
 * how many are left. A bank holds the hypotheses with equally many tokens of constraints. The best
 * hypothesis of each bank comes first, fullest bank first; then the second best, and so on. */
static int64_t share_out(search *run, const progress *one, int64_t count) {
    const constraints *of = &run->required[one->id];
    banked *order = run->banked;
    for (int64_t i = 0; i < count; i++) {
        const candidate next = run->candidates[i];
        follow(of, state_of(run, next.parent), next.token, run->advanced);
        const int32_t bank = bank_of(of, run->advanced);
        /* fairseq's key, with its rounding: banks overlap where totals differ by more than 100. */
        const float key = (float)((of->distinct - bank) * -100) + next.total;
        order[i] = (banked){next, key, (int32_t)i, bank};
    }
    qsort(order, (size_t)count, sizeof *order, by_key);
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const candidate next = order[i].next, last = order[kept ? kept - 1 : 0].next;
        if (!kept || next.parent != last.parent || next.token != last.token)
            order[kept++] = order[i];
    }
    int64_t rank = -1;
    for (int64_t i = 0; i < kept; i++) {
        rank = i && order[i].bank != order[i - 1].bank ? 0 : rank + 1;
        order[i].place = (int32_t)i;
        order[i].key = (double)order[i].bank - (double)(rank * (kept + 1));
    }
    qsort(order, (size_t)kept, sizeof *order, by_key);
    for (int64_t i = 0; i < kept; i++) run->candidates[i] = order[i].next;
    return kept;
}

/* Finds the candidates of a sentence, best first (samples in the order drawn); returns how many. */
static int64_t propose(search *run, const progress *one, int64_t step) {
    const int64_t many = per_row(run->how, step);
    int64_t count = gather(run, one, step, 0, many, 0);
    if (run->how->sampling) return count;
    qsort(run->candidates, (size_t)count, sizeof *run->candidates, better);
    count = count < many ? count : many;
    if (!run->required) return count;
    if (step) count = gather(run, one, step, 0, 1, count);
    count = share_out(run, one, gather(run, one, step, many, run->most_next, count));
    return count < many ? count : many;
}

/* Stores hypotheses that end, and writes others to `active`; returns their count; -1: no memory. */
static int64_t advance(search *run, progress *one, int64_t step, candidate *active) {
    const int64_t count = propose(run, one, step);
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
    return one->finished >= beam || step >= longest(run, one->id) ? 0 : going;
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
static int one_step(search *run, int64_t step) {
    workspace *space = run->space;
    record *now = &run->records[step];
    space->step = step, space->newest = now->fed, space->sentence_of = run->sentence_of;
    space->ancestors = run->lines[0], space->ancestor_stride = run->stride;
    space->attention = now->attention, space->attention_stride = run->longest_source;
    if (decode(space) || rank(run, step)) return -1;
    if (new_record(run, step + 1) || widen_lines(run, step + 1)) return -1;
    record *next = &run->records[step + 1];
    int64_t rows = 0, open = 0;
    for (int64_t i = 0; i < run->open_count; i++) {
        progress one = run->open[i];
        const int64_t going = advance(run, &one, step, run->active);
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
            if (run->required)
                follow(&run->required[one.id], state_of(run, chosen->parent), chosen->token,
                       run->states[1] + rows * run->state_size);
        }
        run->open[open++] = one;
    }
    int32_t *lines = run->lines[0];
    run->lines[0] = run->lines[1], run->lines[1] = lines;
    int32_t *states = run->states[0];
    run->states[0] = run->states[1], run->states[1] = states;
    run->open_count = open;
    space->hypotheses = rows;
    return 0;
}

/* Begins a constrained search; the constraints of sentence s begin at tokens[begins[s]]. */
static int require(search *run, const int32_t *tokens, const int64_t *begins) {
    const int64_t sentences = run->space->sentences, beam = run->how->beam;
    run->required = malloc((size_t)sentences * sizeof *run->required);
    run->nodes = malloc((size_t)(begins[sentences] + sentences) * sizeof *run->nodes);
    if (!run->required || !run->nodes) return 1;
    for (int64_t s = 0; s < sentences; s++) {
        constraints *of = &run->required[s];
        *of = read_constraints(tokens + begins[s], begins[s + 1] - begins[s], run->how->unordered,
                               run->nodes + begins[s] + s);
        if (state_size(of) > run->state_size) run->state_size = state_size(of);
        if (of->count + 1 > run->most_next) run->most_next = of->count + 1;
    }
    const int64_t row = run->state_size, most = beam * (3 + run->most_next);
    for (int i = 0; i < 2; i++)
        run->states[i] = calloc((size_t)(run->most_rows * row), sizeof *run->states[i]);
    run->next = malloc((size_t)run->most_next * sizeof *run->next);
    run->advanced = malloc((size_t)row * sizeof *run->advanced);
    run->banked = malloc((size_t)most * sizeof *run->banked);
    return !run->states[0] || !run->states[1] || !run->next || !run->advanced || !run->banked;
}

static int begin(search *run) {
    workspace *space = run->space;
    const int64_t sentences = space->sentences;
    const program *what = space->what;
    const int64_t vocabulary = what->weights[what->outputs[0].weight].outputs;
    const int64_t logits = (what->output_count > 1 ? 2 : 1) * logit_rows(what) * vocabulary;
    const size_t rows = (size_t)run->most_rows, beam = (size_t)run->how->beam;
    const size_t many = /* tokens that may follow a row */
        (size_t)((run->how->sampling ? 1 : per_row(run->how, 0)) + run->most_next);
    run->stride = 64;
    run->open = malloc((size_t)sentences * sizeof *run->open);
    run->sentence_of = malloc(rows * sizeof *run->sentence_of);
    run->logits = malloc((size_t)logits * sizeof *run->logits);
    run->found = malloc(rows * many * sizeof *run->found);
    run->pool = run->how->sampling ? malloc((size_t)vocabulary * sizeof *run->pool) : NULL;
    run->candidates = malloc(beam * (many + 1) * sizeof *run->candidates);
    run->active = malloc(beam * sizeof *run->active);
    for (int i = 0; i < 2; i++)
        run->lines[i] = malloc(rows * (size_t)run->stride * sizeof *run->lines[i]);
    if (!run->open || !run->sentence_of || !run->logits || !run->found ||
        (run->how->sampling && !run->pool) || !run->candidates || !run->active || !run->lines[0] || !run->lines[1] || new_record(run, 0))
        return 1;
    for (int64_t s = 0; s < sentences; s++) {
        run->open[s] = (progress){(int32_t)s, 1, (int32_t)s, 0};
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
    free(run->pool);
    free(run->barred);
    forget_choices(run->choices, run->choice_count * run->space->what->output_count);
    free(run->candidates);
    free(run->active);
    free(run->lines[0]);
    free(run->lines[1]);
    free(run->required);
    free(run->nodes);
    free(run->states[0]);
    free(run->states[1]);
    free(run->next);
    free(run->advanced);
    free(run->banked);
}

int translate(workspace *space, const rules *how, const int32_t *words, const int64_t *begins,
              int64_t sentences, const int32_t *prefixes, const int64_t *prefix_begins,
              const int64_t *numbers, const int32_t *required, const int64_t *required_begins,
              const int32_t *listed, const int64_t *listed_begins, results *out) {
    out->count = out->length = out->attention_length = 0;
    if (!sentences) return 0;
    search run = {.space = space, .how = how, .out = out};
    run.prefixes = prefixes, run.prefix_begins = prefix_begins, run.numbers = numbers;
    run.most_rows = sentences * how->beam;
    for (int64_t s = 0; s < sentences; s++)
        if (begins[s + 1] - begins[s] > run.longest_source)
            run.longest_source = begins[s + 1] - begins[s];
    space->words = words, space->begins = begins, space->sentences = sentences;
    space->tokens = begins[sentences];
    run.choice_count = listed ? sentences : 1;
    int failed = encode(space);
    failed = failed || !(run.choices = choose(space->what, listed, listed_begins, run.choice_count));
    failed = failed || (required && require(&run, required, required_begins)) || begin(&run);
    for (int64_t step = 0; !failed && run.open_count; step++) failed = one_step(&run, step);
    end(&run);
    return failed != 0;
}
