/* The engine: runs the programs that fairseq_ext/engine/program.py describes.
 *
 * A program is a list of operations on registers. A register is a matrix of floats; its phase says
 * what a row stands for. Sentences lie one after another without padding, and no row of a product
 * depends on other rows. So a sentence's translation does not depend on its batch.
 *
 * Layout of a weight [N, K]: panels of 64 outputs, [panel][k][64]; BF16 [panel][k / 2][64][2], int8
 * and BITS8 [panel][k / 4][64][4], SIGNS as sign_kernels.h says. Outputs after the last one are
 * zeros. */
#ifndef FAIRSEQ_EXT_ENGINE_H
#define FAIRSEQ_EXT_ENGINE_H

#include <stddef.h>
#include <stdint.h>

enum { PANEL = 64, BLOCK = 16 };

/* Queries whose attention is computed at once: a beam of 5. */
enum { TOGETHER = 5 };

/* PLAIN: fp32 [N][K], for tables and vectors. Weights of one bit: SIGNS multiply floats or signs;
 * BITS8 (lowest bit of a byte first; 1 is minus) multiply inputs rounded to int8. TERNARY weights
 * -1, 0 and 1 multiply floats or signs. They are stored as two SIGNS whose mean they are: in each
 * panel, first the words of one, then the words of the other. */
typedef enum { F32, BF16, INT8, PLAIN, SIGNS, BITS8, TERNARY } number;

/* How SIGNS and TERNARY read their inputs: as floats, or as signs times a level. The level is half
 * of the row's largest magnitude, its mean magnitude, or half of `bound`. */
typedef enum { FLOATS, BY_LARGEST, BY_MEAN, BY_BOUND } reading;

/* y = x W^T + b. `scales` has a number for each output: in INT8 its unit, in BITS8 and TERNARY its
 * level, in SIGNS twice its level. `sums` of INT8 and BITS8: 128 times the sum of each output's
 * weights, for instructions that read inputs with 128 added. `divisor` divides levels of inputs. */
typedef struct {
    int32_t kind, reading;
    int64_t inputs, outputs;
    const void *values;
    const float *scales;
    const int32_t *sums;
    float bound, divisor;
} weight;

typedef enum { NONE, RELU, GELU, TANH, GELU_TANH } activation;

/* A token with its logit or probability. */
typedef struct {
    float value;
    int32_t token;
} best;

/* Returns the address of the n-th number of an array of fp32, or of bf16 if `bf16`. */
static inline const float *nth(int bf16, const float *numbers, int64_t n) {
    return (const float *)((const char *)numbers + n * (bf16 ? 2 : 4));
}

/* The functions that depend on the instruction set. Counts are in floats unless said otherwise. */
typedef struct {
    /* y[rows, N] = f(x[rows, K] W^T + bias) + added; rows of y are y_stride apart. `added` must be
     * NULL unless f is NONE or RELU. */
    void (*product)(const weight *w, const float *x, int64_t x_stride, int64_t rows,
                    const float *bias, const float *added, int64_t added_stride, int act, float *y,
                    int64_t y_stride, void *scratch);
    /* y = (x - mean) / sqrt(variance + eps) * gain + shift */
    void (*norm)(const float *x, int64_t n, const float *gain, const float *shift, float eps,
                 float *y);
    void (*activate)(int act, const float *x, int64_t n, float *y);
    /* y = a x + b z */
    void (*add)(float a, const float *x, float b, const float *z, int64_t n, float *y);
    /* y = x in bf16; y may begin where x does. */
    void (*to_bf16)(const float *x, int64_t n, uint16_t *y);
    /* The next four functions read rows of fp32, or of bf16 if `bf16`.
     * out[i] = scale q . rows[i] for n rows; `out` has room for n rounded up to a multiple of 16 */
    void (*dots)(int bf16, const float *q, const float *const *rows, int64_t n, int64_t dim,
                 float scale, float *out);
    /* `dots` of several queries with keys in blocks of 16 rows, [block][dim][16]. */
    void (*block_dots)(int bf16, int64_t queries, const float *q, int64_t q_stride,
                       const float *blocks, int64_t n, int64_t dim, float scale, float *out,
                       int64_t out_stride);
    /* y = sum of weights[i] rows[i] over n rows */
    void (*mix)(int bf16, const float *weights, const float *const *rows, int64_t n,
                int64_t dim, float *y);
    /* `mix` with the weights of several queries, over rows that are v_stride numbers apart. */
    void (*mix_together)(int bf16, int64_t queries, const float *weights, int64_t w_stride,
                         const float *values, int64_t v_stride, int64_t n, int64_t dim, float *y,
                         int64_t y_stride);
    /* The softmax of x, in place. */
    void (*softmax)(float *x, int64_t n);
    /* The `count` largest of x, largest first, without `barred` ones (NULL or a list that ends with
     * -1); returns log(sum(exp(x))) over all of x. */
    float (*largest)(const float *x, int64_t n, const int32_t *barred, int count, best *found);
    /* y = log(exp(y - a) + exp(x - b)) */
    void (*unite)(float *y, float a, const float *x, float b, int64_t n);
    /* state' = (1 - z) n + z state from gates r, z, n: W x + b and U s + b', [3 * n] each */
    void (*gru)(const float *inputs, const float *hiddens, const float *state, int64_t n, float *y);
    /* [h'; c'] of an LSTM from gates i, f, g, o: W x + b and U h + b', [4 * n] each, and c */
    void (*lstm)(const float *inputs, const float *hiddens, const float *cell, int64_t n, float *y);
    /* y = x sigmoid(gates) */
    void (*gate)(const float *x, const float *gates, int64_t n, float *y);
    /* sum of v tanh(keys + query) */
    float (*additive)(const float *keys, const float *query, const float *v, int64_t n);
} arithmetic;

extern const arithmetic portable_arithmetic;
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_X86 1
extern const arithmetic avx2_arithmetic;
extern const arithmetic avx512_arithmetic;
#if __GNUC__ >= 11
#define HAVE_BF16 1
extern const arithmetic avx512_bf16_arithmetic;
#endif
#if defined(__linux__) && __GNUC__ >= 11
#define HAVE_AMX 1
extern const arithmetic amx_arithmetic;
/* Returns whether this process may use AMX's tiles. */
int amx_available(void);
#endif
#endif

/* `product` for SIGNS and TERNARY. */
void product_of_signs(const weight *w, const float *x, int64_t x_stride, int64_t rows,
                      const float *bias, float *y, int64_t y_stride, void *scratch,
                      int path);

/* Prefetches weights that are read AHEAD bytes later: what the processor prefetches by itself comes
 * too late for products of few rows. */
enum { AHEAD = 4096, CACHE_LINE = 64 };
static inline __attribute__((always_inline)) void fetch(const void *weights, int bytes) {
    for (int place = 0; place < bytes; place += CACHE_LINE)
        __builtin_prefetch((const char *)weights + AHEAD + place, 0, 2);
}

/* Bytes of scratch memory that `product` needs for this many inputs: for quantized rows, or for a
 * panel in fp32. */
enum { SCRATCH_ROWS = 192 };
#define SCRATCH(inputs) ((size_t)(PANEL * 8) * (((size_t)(inputs) + 67) / 4 * 4 + 64))

#endif
