/* Sampling as fairseq's Sampling and our EpsilonSampling do it, with numbers of its own. */
#ifndef FAIRSEQ_EXT_SAMPLING_H
#define FAIRSEQ_EXT_SAMPLING_H

#include "search.h"

/* Tokens that may be drawn; their values are probabilities. */
typedef struct {
    const best *tokens;
    int64_t count;
} pool;

/* The tokens that the rules leave, of n probabilities (0: barred); `room` is for n tokens. */
pool truncated(const rules *how, const float *probabilities, int64_t n, best *room);

/* A number from 0 up and below 1 that depends on nothing else. */
double uniform(uint64_t seed, uint64_t sentence, uint64_t step, uint64_t place);

/* The token of a pool that is not empty at this part of its probability. */
const best *drawn(pool from, double part);

#endif
