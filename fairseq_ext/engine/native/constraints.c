#include "constraints.h"

#include <string.h>

/* Returns the node of a token that follows the node `parent`, or 0. */
static int32_t child(const constraints *of, int32_t parent, int32_t token) {
    for (int32_t i = 1; i < of->count; i++)
        if (of->nodes[i].parent == parent && of->nodes[i].token == token) return i;
    return 0;
}

static int32_t new_node(constraints *of, int32_t parent, int32_t token) {
    int is_new = 1;
    for (int32_t i = 1; i < of->count; i++) is_new = is_new && of->nodes[i].token != token;
    of->distinct += is_new;
    of->nodes[of->count] = (constraint_node){token, parent, 0, 0};
    return of->count++;
}

constraints read_constraints(const int32_t *tokens, int64_t count, int unordered,
                             constraint_node *nodes) {
    constraints of = {nodes, 1, 0, unordered};
    int32_t node = 0;
    nodes[0] = (constraint_node){-1, -1, 0, 0};
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i]) {
            const int32_t parent = unordered ? node : of.count - 1;
            node = child(&of, parent, tokens[i]);
            if (!node) node = new_node(&of, parent, tokens[i]);
        } else if (node) {
            nodes[node].ends++;
            for (; node >= 0; node = nodes[node].parent) nodes[node].uses++;
            node = 0;
        }
    }
    return of;
}

int64_t state_size(const constraints *of) { return of->unordered ? 1 + 2 * of->count : 1; }

static void follow_in_order(const constraints *of, const int32_t *state, int32_t token,
                            int32_t *next) {
    const constraint_node *nodes = of->nodes;
    const int32_t node = state[0];
    next[0] = node;
    if (are_met(of, state)) return;
    if (nodes[node + 1].token == token) next[0] = node + 1;
    /* Between two constraints any token may come. Within a constraint, any token but its next one
     * sends the hypothesis back to the beginning of the first constraint. */
    else if (node && !nodes[node].ends) next[0] = nodes[1].token == token;
}

void follow(const constraints *of, const int32_t *state, int32_t token, int32_t *next) {
    if (!of->unordered) {
        follow_in_order(of, state, token, next);
        return;
    }
    memcpy(next, state, (size_t)state_size(of) * sizeof *next);
    const constraint_node *nodes = of->nodes;
    int32_t *generated = next + 1, *completed = generated + of->count;
    int32_t node = child(of, state[0], token);
    const int goes_on = node && generated[node] < nodes[node].uses;
    if (!goes_on) node = child(of, 0, token);
    if (generated[node] >= nodes[node].uses) node = 0; /* the root is never generated */
    next[0] = node;
    if (node) generated[node]++;
    /* If the token does not continue the old path: count the last constraint that the path
     * completed, and take back the tokens that came after its end. */
    for (int32_t left = goes_on ? 0 : state[0]; left; left = nodes[left].parent) {
        if (completed[left] < nodes[left].ends) {
            completed[left]++;
            return;
        }
        generated[left]--;
    }
}

static int32_t sum(const int32_t *numbers, int32_t count) {
    int32_t total = 0;
    for (int32_t i = 0; i < count; i++) total += numbers[i];
    return total;
}

int32_t bank_of(const constraints *of, const int32_t *state) {
    return of->unordered ? sum(state + 1, of->count) : state[0];
}

int are_met(const constraints *of, const int32_t *state) {
    if (!of->unordered) return state[0] == of->count - 1;
    const int32_t *completed = state + 1 + of->count;
    const int ends_now = completed[state[0]] < of->nodes[state[0]].ends;
    return sum(completed, of->count) + ends_now == of->nodes[0].uses;
}

int32_t next_tokens(const constraints *of, const int32_t *state, int32_t *tokens) {
    const constraint_node *nodes = of->nodes;
    const int32_t node = state[0];
    int32_t count = 0;
    if (!of->unordered) {
        if (node > 1) tokens[count++] = nodes[1].token; /* to begin again */
        if (node + 1 < of->count) tokens[count++] = nodes[node + 1].token;
        return count;
    }
    for (int32_t i = 1; i < of->count; i++)
        if (nodes[i].parent == 0 || nodes[i].parent == node) tokens[count++] = nodes[i].token;
    return count;
}
