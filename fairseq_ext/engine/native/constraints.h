/* Lexical constraints: which words a translation must still have, by the rules of fairseq's
 * constraint states. */
#ifndef FAIRSEQ_EXT_CONSTRAINTS_H
#define FAIRSEQ_EXT_CONSTRAINTS_H

#include <stdint.h>

/* A token of a constraint; node 0 is the root, before any token. */
typedef struct {
    int32_t token, parent;
    int32_t ends, uses; /* how many constraints end here; end here or after more tokens */
} constraint_node;

/* The constraints of a sentence. In order, they are a chain of all their tokens; in any order, a tree
 * in which constraints that begin with the same tokens share nodes. */
typedef struct {
    constraint_node *nodes;
    int32_t count, distinct, unordered; /* nodes; different tokens */
} constraints;

/* A hypothesis's state: the node of its newest token; in any order also, for each node, how often it
 * was generated, and how many constraints that end there were completed and left behind. */
int64_t state_size(const constraints *of);

/* Reads tokens, in which 0 ends a constraint; `nodes` has room for one more than `count` tokens. */
constraints read_constraints(const int32_t *tokens, int64_t count, int unordered,
                             constraint_node *nodes);
/* The state after one more token. */
void follow(const constraints *of, const int32_t *state, int32_t token, int32_t *next);
/* Progress: how many tokens of constraints a hypothesis has. */
int32_t bank_of(const constraints *of, const int32_t *state);
int are_met(const constraints *of, const int32_t *state);
/* Writes the tokens that make progress, fewer than there are nodes or 2; returns how many. */
int32_t next_tokens(const constraints *of, const int32_t *state, int32_t *tokens);

#endif
