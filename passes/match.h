/* Patterns as data: rewrite rules between small graphs, written as text in the patterns_*.def files.
 *
 *   pattern := ?name                       any value; the same name is the same value
 *            | #name                       a constant whose elements are all equal, bound as a number
 *            | number                      a constant all of whose elements are this number (see NUMBER_TOLERANCE)
 *            | (op[attr=what ...] pattern*)   result 0 of a node
 *            | {pattern pattern ...}       any one of these
 *   what    := number | #name              INT, FLOAT, BOOL; also INTS with one element
 *            | #name..                     INTS: the axes from #name to the last
 *
 * Operators have their internal names; two more stand for casts: `widen` to a wider float type, `narrow` to a narrower
 * one. Operands of commutative operators match in either order. An INT, FLOAT or BOOL attribute that a pattern leaves
 * out must have its default. Negative axes equal the positive ones they stand for.
 *
 * A rule applies to the node that its `from` matches at the root when, besides, (1) no node of the match that is worth
 * keeping (not KVA_CHEAP) has a user outside the match, (2) the rule's condition holds, and (3) `to`, built before the
 * node, has exactly the root's result type. In `to`, a number is a scalar constant of the root's dtype. */
#ifndef KVA_PASSES_MATCH_H
#define KVA_PASSES_MATCH_H

#include "passes/passes_internal.h"

enum { KVA_MATCH_SLOTS = 12, KVA_MATCH_NODES = 48 };

/* What the names of one rule stand for. */
typedef struct kva_match {
  const char *const *names; /* of the rule, without ? and # */
  kva_node *root;
  kva_value *values[KVA_MATCH_SLOTS];
  double numbers[KVA_MATCH_SLOTS];
  bool bound[KVA_MATCH_SLOTS];
  kva_node *nodes[KVA_MATCH_NODES]; /* inside the match, root first */
  uint32_t n_nodes;
} kva_match;

typedef bool (*kva_rule_condition)(const kva_match *m);

typedef struct kva_rule_text {
  const char *name, *from, *to;
  kva_rule_condition condition; /* NULL: none */
} kva_rule_text;

typedef struct kva_rules kva_rules;

/* Malformed text is a defect of Kvasir: asserted. */
kva_rules *kva_rules_compile(kva_arena *arena, uint32_t n, const kva_rule_text *texts);
/* The value to use instead of result 0 of b->before, by the first rule that applies; NULL: none does, nothing was
 * built. out_rule (may be NULL): its name. */
kva_value *kva_rules_apply(const kva_rules *rules, kva_builder *b, const char **out_rule);

/* For conditions. The name must be in the rule. */
kva_value *kva_match_value(const kva_match *m, const char *name);
double kva_match_number(const kva_match *m, const char *name);

/* An attempt to build a replacement for b->before: inference is part of matching, so what it has to say does not reach
 * the user. The end returns v when all went well and v has the type of b->before's result 0; else it takes out what the
 * attempt has built and returns NULL (v may be NULL: give up). */
typedef struct kva_attempt {
  kva_node *last; /* before the attempt's first node */
  kva_diag *shown;
} kva_attempt;
kva_attempt kva_attempt_begin(kva_builder *b);
kva_value *kva_attempt_end(kva_builder *b, kva_attempt attempt, kva_value *v);

/* Looks through reshape and expand at a constant whose elements are all equal. */
bool kva_number_of(const kva_value *v, double *out_x);

#endif
