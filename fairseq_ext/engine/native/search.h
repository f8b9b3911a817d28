/* Beam search as fairseq's SequenceGenerator does it. */
#ifndef FAIRSEQ_EXT_SEARCH_H
#define FAIRSEQ_EXT_SEARCH_H

#include "machine.h"

typedef struct {
    int32_t beam, min_len, max_len_b, most, attention; /* most: tokens of any translation */
    float max_len_a, lenpen, unkpen, temperature; /* lenpen: NaN leaves scores as sums */
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

/* 0: done; 1: no memory. `prefixes`: tokens that translations begin with, from prefix_begins on. */
int translate(workspace *space, const rules *how, const int32_t *words, const int64_t *begins,
              int64_t sentences, const int32_t *prefixes, const int64_t *prefix_begins,
              results *out);

#endif
