/* Beam search and sampling as fairseq's SequenceGenerator does them. */
#ifndef FAIRSEQ_EXT_SEARCH_H
#define FAIRSEQ_EXT_SEARCH_H

#include "machine.h"

typedef struct {
    int32_t beam, min_len, max_len_b;
    int32_t most; /* largest length of any translation, without </s> */
    int32_t attention;
    int32_t match_source, no_repeat;              /* no_repeat: size of n-grams, or 0 */
    int32_t sampling, top_k;                      /* top_k 0: all tokens */
    int32_t unordered;                            /* whether constraints may be met in any order */
    double max_len_a; /* not a float, because 0.7f * 10 is below 7 */
    float unkpen, temperature;
    float lenpen, length_offset; /* sums are divided by ((offset + length) / (offset + 1))^lenpen,
                                    and by nothing if lenpen is NaN */
    float top_p, epsilon;        /* 0: all tokens */
    uint64_t seed;
} rules;

/* A finished translation; its tokens, </s> included, and their scores begin at `first`. */
typedef struct {
    int32_t sentence, length;
    float score;
    int32_t columns; /* source tokens: attention is [length][columns], from `attention` on */
    int64_t first, attention;
} translation;

typedef struct {
    translation *found;
    int64_t count, room;
    int32_t *tokens;
    float *scores;
    int64_t length, length_room;
    float *attention;
    int64_t attention_length, attention_room;
} results;

/* Translates sentences; returns 0, or 1 if there is no memory. In each array NAME, sentence s begins
 * at index NAME_begins[s] (in `words`, at begins[s]).
 * `prefixes`: tokens with which translations begin, perhaps with </s> at the end; NULL: none.
 * `numbers`: the sentences' numbers, for sampling; NULL: counted from 0. `required`: constraints,
 * each ended by 0; NULL: none. `listed`: tokens that translations may have, ascending, among them
 * </s>, the prefix's tokens and the constraints' tokens; NULL: all tokens. */
int translate(workspace *space, const rules *how, const int32_t *words, const int64_t *begins,
              int64_t sentences, const int32_t *prefixes, const int64_t *prefix_begins,
              const int64_t *numbers, const int32_t *required, const int64_t *required_begins,
              const int32_t *listed, const int64_t *listed_begins, results *out);

#endif
