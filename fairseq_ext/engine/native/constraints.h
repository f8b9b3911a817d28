/* Lexical constraints: which words a translation must still have, by the rules of fairseq's
 * constraint states. */
#ifndef FAIRSEQ_EXT_CONSTRAINTS_H
#define FAIRSEQ_EXT_CONSTRAINTS_H

#include <stdint.h>

/* A token of a constraint; node 0 is the root, before any token. */
typedef struct {
    int32_t token, parent;
    int32_t ends; /* number of constraints that end at this node */
    int32_t uses; /* number of constraints that end at this node or at one below it */
} constraint_node;

/* The constraints of a sentence. Ordered constraints are a chain of all their tokens. Unordered ones
 * are a tree, in which constraints that begin with the same tokens share nodes. */
typedef struct {
    constraint_node *nodes;
    int32_t count;     /* number of nodes */
    int32_t distinct;  /* number of different tokens */
    int32_t unordered; /* whether the constraints may be met in any order */
} constraints;

/* Returns how many numbers a hypothesis's state has: the node of its newest token; if the
 * constraints are unordered, also for each node how often it was generated, and for each node how
 * many constraints that end there were completed before. */
int64_t state_size(const constraints *of);

/* Reads tokens, in which 0 ends a constraint; `nodes` must have room for count + 1 nodes. */
constraints read_constraints(const int32_t *tokens, int64_t count, int unordered,
                             constraint_node *nodes);
/* Computes the state after one more token. */
void follow(const constraints *of, const int32_t *state, int32_t token, int32_t *next);
/* Returns how many tokens of constraints a hypothesis has. */
int32_t bank_of(const constraints *of, const int32_t *state);
int are_met(const constraints *of, const int32_t *state);
/* Writes the tokens that would begin or continue a constraint; returns how many. There are fewer of
 * them than nodes. */
int32_t next_tokens(const constraints *of, const int32_t *state, int32_t *tokens);

#endif
