/* Patterns as data: rewrite rules between small graphs, written as text in the patterns_*.def files.
 *
 *   pattern := ?name                       any value; equal names mean the same value
 *            | #name                       a constant with equal elements, bound as a number
 *            | number                      a constant whose elements all equal this number (see NUMBER_TOLERANCE)
 *            | (op[attr=what ...] pattern*)   result 0 of a node
 *            | {pattern pattern ...}       one of these
 *   what    := number | #name              INT, FLOAT, BOOL; also INTS with one element
 *            | #name..                     INTS: the axes from #name to the last
 *
 * Operators have their internal names. `widen` matches a cast to a wider float type, `narrow` one to a narrower type.
 * Operands of commutative operators match in either order. An INT, FLOAT or BOOL attribute that a pattern omits must
 * have its default. Negative axes equal the positive axes that they denote.
 *
 * A rule applies to the node that the root of `from` matches if (1) no matched node that is worth keeping (not
 * KVA_CHEAP) has a use outside the match, (2) the rule's condition holds, and (3) `to`, built before the node, has
 * exactly the root's result type. In `to`, a number is a scalar constant of the root's dtype. */
#ifndef KVA_PASSES_MATCH_H
#define KVA_PASSES_MATCH_H

#include "passes/passes_internal.h"

enum { KVA_MATCH_SLOTS = 12, KVA_MATCH_NODES = 48 };

/* The bindings of a rule's names. */
typedef struct kva_match {
  const char *const *names; /* the rule's names, without ? and # */
  kva_node *root;
  kva_value *values[KVA_MATCH_SLOTS];
  double numbers[KVA_MATCH_SLOTS];
  bool bound[KVA_MATCH_SLOTS];
  kva_node *nodes[KVA_MATCH_NODES]; /* matched nodes, root first */
  uint32_t n_nodes;
} kva_match;

typedef bool (*kva_rule_condition)(const kva_match *m);

typedef struct kva_rule_text {
  const char *name, *from, *to;
  kva_rule_condition condition; /* NULL: none */
} kva_rule_text;

typedef struct kva_rules kva_rules;

/* Asserts that the text is well-formed: it is part of Kvasir. */
kva_rules *kva_rules_compile(kva_arena *arena, uint32_t n, const kva_rule_text *texts);
/* The replacement for result 0 of b->before by the first rule that applies. NULL: none does, and nothing was built.
 * out_rule (may be NULL) receives the rule's name. */
kva_value *kva_rules_apply(const kva_rules *rules, kva_builder *b, const char **out_rule);

/* For conditions. The rule must contain the name. */
kva_value *kva_match_value(const kva_match *m, const char *name);
double kva_match_number(const kva_match *m, const char *name);

/* An attempt to build a replacement for b->before. Inference is part of matching, so its diagnostics are not shown to
 * the user. The end returns v if the build succeeded and v has the type of b->before's result 0. Otherwise it removes
 * the nodes that the attempt has built and returns NULL (v may be NULL: give up). */
typedef struct kva_attempt {
  kva_node *last; /* the node before the attempt's first one */
  kva_diag *shown;
} kva_attempt;
kva_attempt kva_attempt_begin(kva_builder *b);
kva_value *kva_attempt_end(kva_builder *b, kva_attempt attempt, kva_value *v);

/* Matches a constant with equal elements through reshape and expand. */
bool kva_number_of(const kva_value *v, double *out_x);

#endif
