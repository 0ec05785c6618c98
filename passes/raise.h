/* The matchers of passes/raise.c that are code. Each looks for its operator with b->before as the last node of the
 * spelling and returns the value to use instead of that node's result 0, or NULL when there is no match; a failed
 * attempt leaves no node behind. */
#ifndef KVA_PASSES_RAISE_H
#define KVA_PASSES_RAISE_H

#include "passes/match.h"

kva_value *kva_raise_cross_entropy(kva_builder *b);
kva_value *kva_raise_rope(kva_builder *b);
kva_value *kva_raise_attention(kva_builder *b);
kva_value *kva_raise_kv_shift(kva_builder *b);
/* A shift without a mix: last, when no mix wants it. */
kva_value *kva_raise_hard_shift(kva_builder *b);

/* v depends on a parameter that training changes. Some operands of raised operators have no gradient rule: in a module
 * that trains they must not depend on parameters. */
bool kva_depends_on_parameters(const kva_value *v);

#endif
