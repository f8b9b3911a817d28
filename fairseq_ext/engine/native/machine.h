/* Programs, and the memory in which one thread runs them. */
#ifndef FAIRSEQ_EXT_MACHINE_H
#define FAIRSEQ_EXT_MACHINE_H

#include "engine.h"

/* What a row of a register stands for. */
typedef enum { TOKENS, SENTENCES, HYPOTHESES, SLOTS } phase;

typedef struct {
    int32_t width, phase;
    int32_t rows; /* per sentence, in SLOTS */
} shape;

/* Columns of a register. */
typedef struct {
    int32_t index, offset, width;
} columns;

typedef enum {
    EMBED,         /* out = real[0] W[token] + P[position + ints[0]] */
    LINEAR,        /* out = f(in0 W^T + b) + in1 */
    NORM,          /* out = LN(in0) of each of ints[0] groups, all with the same weights */
    ADD,           /* out = real[0] in0 + real[1] in1 */
    ACTIVATE,      /* out = f(in0) */
    TRANSPOSE,     /* reorders keys in0 of ints[0] heads into blocks for ATTEND, ATTEND_SOURCE */
    ATTEND,        /* attention in a sentence: queries in0, keys in1 (transposed), values in2 */
    ATTEND_PAST,   /* attention of query in0 to keys in1 and values in2 of all steps so far */
    ATTEND_SOURCE, /* attention of query in0 to the source: keys in1 (transposed), values in2 */
    MIX,           /* slots: out = E in0 for each sentence (Linformer) */
    CONVOLVE,      /* dynamic convolution of in1; in0 has the logits of the kernels (MUSE) */
    TAPS,          /* the ints[2] rows around each row of in0, side by side, 0 outside */
    RECUR,         /* all states of a GRU or LSTM from its input gates in0; ints[0]: see below */
    PICK,          /* the last row of each sentence in in0, or the first row if ints[0] */
    RECALL,        /* in0 of the step before; at the first step, in1 of the sentence, or 0 */
    GRU,           /* the next state: gates from inputs (in0) and from the state (in1); state in2 */
    ADDITIVE,      /* sum of softmax(v tanh(in0 + in1)) in2 over the sentence's source */
    BINARIZE,      /* out = sign(in0) max|in0| / 2, in ints[0] groups */
    GATE,          /* out = in0 sigmoid(in1) */
    FILTER,        /* convolution of in0: ints[0] heads have a kernel of ints[2] taps each */
    LSTM,          /* the next [state; cell]: gates from inputs (in0), from state (in1); cell in2 */
} code;

/* Bits of ints[0] of RECUR; the rows of an LSTM are [state; cell]. */
enum { BACKWARDS = 1, CELLS = 2 };

/* ints[2] of attention: values are signs times levels, and attention weights are binarized too. */
enum { SIGNED = 1, UNSIGNED = 2 };

typedef struct {
    int32_t code;
    columns out, in[3];
    int32_t weights[3];
    int32_t ints[4];
    float reals[2];
} operation;

/* An output layer: the columns that it reads, its matrix and its bias (-1: none). */
typedef struct {
    columns result;
    int32_t weight, bias;
} output;

typedef struct {
    const weight *weights;
    const shape *shapes;
    const operation *encoder, *decoder;
    const output *outputs; /* one for each model, whose probabilities are averaged */
    int32_t encoder_count, decoder_count, shape_count, cache_count, output_count;
    int32_t bos, eos, pad, unk; /* `bos` begins every translation */
} program;

/* The memory of one thread. */
typedef struct {
    const program *what;
    const arithmetic *math;
    float **registers;   /* the address of each register, in one of the memories */
    int32_t *memory_of;  /* the number of each register's memory */
    float **memories;
    int64_t *capacities; /* the size of each memory, in floats */
    int32_t memory_count;
    int64_t sentences, tokens, hypotheses, step;
    const int32_t *words;   /* input of the encoder, [tokens] */
    const int64_t *begins;  /* where sentences begin in `words`, [sentences + 1] */
    int32_t *sentence_of_token; /* [tokens] */
    int64_t *block_begins;  /* where sentences begin in transposed keys, in blocks */
    const int32_t *newest;  /* input of the decoder, [hypotheses] */
    const int32_t *sentence_of; /* [hypotheses] */
    const int32_t *ancestors;   /* [hypotheses][ancestor_stride]: its ancestor's row at each step */
    int64_t ancestor_stride;
    float ***caches; /* [cache][step]: keys and values of all rows */
    int64_t cache_steps;
    float *attention; /* this step's, [hypotheses][longest source], the models' mean; or NULL */
    int64_t attention_stride;
    void *scratch;
    float *scores;
    const float **pointers;
    int64_t longest; /* capacity of `scores` and `pointers` */
} workspace;

workspace *new_workspace(const program *what, const arithmetic *math);
void free_workspace(workspace *space);
/* Both return 0, or 1 if there is no memory. */
int encode(workspace *space);
int decode(workspace *space);
float *rows_of(workspace *space, columns place);
int64_t stride_of(const workspace *space, columns place);
int reserve(workspace *space, int32_t index, int64_t rows);

#endif
