/* The part of an output layer that the translations of a sentence may use. */
#ifndef FAIRSEQ_EXT_SHORTLIST_H
#define FAIRSEQ_EXT_SHORTLIST_H

#include "machine.h"

typedef struct {
    weight output;
    const float *bias;     /* or NULL */
    const int32_t *tokens; /* [output.outputs], ascending; NULL: the whole vocabulary */
    void *memory;          /* holds the copied rows, or NULL */
} choices;

/* Returns the choices of all sentences, [sentences][output_count], with copies of the listed rows
 * of the output layers. The rows for sentence s begin at listed[begins[s]]; `listed` is NULL without
 * shortlists. Returns NULL if there is no memory. */
choices *choose(const program *what, const int32_t *listed, const int64_t *begins, int64_t sentences);
void forget_choices(choices *some, int64_t count);

/* Returns a token's index among the choices, or -1. */
int32_t place_of(const choices *from, int32_t token);

#endif
