/* The matchers of passes/raise.c that are code. Each tries b->before as the last node of a spelling, and returns the
 * replacement for its result 0, or NULL if there is no match. A failed attempt leaves no nodes behind. */
#ifndef KVA_PASSES_RAISE_H
#define KVA_PASSES_RAISE_H

#include "passes/match.h"

kva_value *kva_raise_cross_entropy(kva_builder *b);
kva_value *kva_raise_rope(kva_builder *b);
kva_value *kva_raise_attention(kva_builder *b);
kva_value *kva_raise_kv_shift(kva_builder *b);
/* A shift without a mix. Runs last, on shifts that no mix has consumed. */
kva_value *kva_raise_hard_shift(kva_builder *b);

/* Whether a cast reads v. Where that is fake quantisation, v must stay the result of a cast, which rounds; results of
 * narrow operators need not inside a fused kernel. */
bool kva_is_cast_again(const kva_value *v);

/* Whether v depends on a parameter that training changes. Some operands of raised operators have no gradient rule; in a
 * training module these must not depend on parameters. */
bool kva_depends_on_parameters(const kva_value *v);

#endif
