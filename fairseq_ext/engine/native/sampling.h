/* Sampling like fairseq's Sampling and our EpsilonSampling, but with its own random numbers. */
#ifndef FAIRSEQ_EXT_SAMPLING_H
#define FAIRSEQ_EXT_SAMPLING_H

#include "search.h"

/* Tokens that may be drawn; their values are probabilities. */
typedef struct {
    const best *tokens;
    int64_t count;
} pool;

/* Writes the tokens that the rules allow, among n probabilities (0: barred), to `room`. */
pool truncated(const rules *how, const float *probabilities, int64_t n, best *room);

/* Returns a number, at least 0 and below 1, that depends only on the arguments. */
double uniform(uint64_t seed, uint64_t sentence, uint64_t step, uint64_t place);

/* Returns the token at which a nonempty pool's cumulative probability passes `part` of its sum. */
const best *drawn(pool from, double part);

#endif
