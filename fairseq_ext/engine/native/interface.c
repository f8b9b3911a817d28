/* The functions that Python calls through ctypes. */
#include <stdlib.h>

#include "search.h"

#define EXPORT __attribute__((visibility("default")))

/* Changes whenever a structure or operation does, so that Python refuses an old library. */
EXPORT int engine_interface(void) { return 9; }

/* Returns the fastest code path that this processor can run: 0 is for any processor, 1 for AVX2, 2
 * for AVX-512 with VNNI, 3 for AVX512-BF16 in addition, 4 for AMX in addition. */
EXPORT int engine_best_path(void) {
#ifdef HAVE_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
#ifdef HAVE_BF16
        if (!__builtin_cpu_supports("avx512bf16")) return 2;
#ifdef HAVE_AMX
        if (amx_available()) return 4;
#endif
        return 3;
#else
        return 2;
#endif
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

static const arithmetic *chosen(int path) {
#ifdef HAVE_AMX
    if (path == 4) return &amx_arithmetic;
#endif
#ifdef HAVE_BF16
    if (path == 3) return &avx512_bf16_arithmetic;
#endif
#ifdef HAVE_X86
    if (path == 2) return &avx512_arithmetic;
    if (path == 1) return &avx2_arithmetic;
#endif
    (void)path;
    return &portable_arithmetic;
}

EXPORT workspace *engine_open(const program *what, int path) {
    return new_workspace(what, chosen(path));
}

EXPORT void engine_close(workspace *space) { free_workspace(space); }

EXPORT int engine_translate(workspace *space, const rules *how, const int32_t *words,
                            const int64_t *begins, int64_t sentences, const int32_t *prefixes,
                            const int64_t *prefix_begins, const int64_t *numbers,
                            const int32_t *required, const int64_t *required_begins,
                            const int32_t *listed, const int64_t *listed_begins, results *out) {
    return translate(space, how, words, begins, sentences, prefixes, prefix_begins, numbers,
                     required, required_begins, listed, listed_begins, out);
}

EXPORT void engine_forget(results *out) {
    free(out->found);
    free(out->tokens);
    free(out->scores);
    free(out->attention);
    *out = (results){0};
}

EXPORT void engine_product(int path, const weight *w, const float *x, int64_t rows,
                           const float *bias, int act, float *y) {
    void *scratch = malloc(SCRATCH(w->inputs));
    chosen(path)->product(w, x, w->inputs, rows, bias, NULL, 0, act, y, w->outputs, scratch);
    free(scratch);
}
