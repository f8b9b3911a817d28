#include "sampling.h"

/* The mixing function of SplitMix64 (Steele, Lea and Flood 2014). */
static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

double uniform(uint64_t seed, uint64_t sentence, uint64_t step, uint64_t place) {
    /* A hash has no state, so the result does not depend on earlier draws. */
    const uint64_t bits = mixed(mixed(mixed(mixed(seed) ^ sentence) ^ step) ^ place);
    return (double)(bits >> 11) * 0x1p-53;
}

static int before(best a, best b) {
    return a.value > b.value || (a.value == b.value && a.token < b.token);
}

/* Lets the token at `at` sink until no token below it is more probable. */
static void sink(best *heap, int64_t n, int64_t at) {
    const best moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

/* Finds the most probable tokens, until there are top_k or their sum is top_p, and moves them behind
 * the others. It uses a heap, because sorting the whole vocabulary takes longer. */
static pool most_probable(const rules *how, best *tokens, int64_t n) {
    double sum = 0;
    int64_t left = n;
    for (int64_t at = n / 2 - 1; at >= 0; at--) sink(tokens, n, at);
    while (left && (how->top_p > 0 ? sum < how->top_p : n - left < how->top_k)) {
        const best top = tokens[0];
        sum += top.value;
        tokens[0] = tokens[--left];
        sink(tokens, left, 0);
        tokens[left] = top;
    }
    return (pool){tokens + left, n - left};
}

pool truncated(const rules *how, const float *probabilities, int64_t n, best *room) {
    float least = how->epsilon, top = 0;
    for (int64_t i = 0; i < n; i++) top = probabilities[i] > top ? probabilities[i] : top;
    if (least > top) least = top;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (probabilities[i] > 0 && probabilities[i] >= least)
            room[count++] = (best){probabilities[i], (int32_t)i};
    if (how->top_p > 0 || how->top_k > 0) return most_probable(how, room, count);
    return (pool){room, count};
}

const best *drawn(pool from, double part) {
    double sum = 0, passed = 0;
    for (int64_t i = 0; i < from.count; i++) sum += from.tokens[i].value;
    for (int64_t i = 0; i < from.count; i++) {
        passed += from.tokens[i].value;
        if (passed > part * sum) return &from.tokens[i];
    }
    return &from.tokens[from.count - 1];
}
