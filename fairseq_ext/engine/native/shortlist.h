/* The part of an output layer that the translations of a sentence may use. */
#ifndef FAIRSEQ_EXT_SHORTLIST_H
#define FAIRSEQ_EXT_SHORTLIST_H

#include "machine.h"

typedef struct {
    weight output;
    const float *bias;     /* or NULL */
    const int32_t *tokens; /* [output.outputs], ascending; NULL: the whole vocabulary */
    void *memory;          /* of what was copied, or NULL */
} choices;

/* The choices of so many sentences, [sentences][output_count], with copies of the listed rows of the
 * output layers: of sentence s those from begins[s] on. If nothing is listed, `listed` is NULL.
 * Returns NULL without memory. */
choices *choose(const program *what, const int32_t *listed, const int64_t *begins, int64_t sentences);
void forget_choices(choices *some, int64_t count);

/* Where a token stands among the choices, or -1. */
int32_t place_of(const choices *from, int32_t token);

#endif
