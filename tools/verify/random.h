/* Random cases: a generator draws numbers and adds texts of shapes and attributes. */
#ifndef KVA_TOOLS_VERIFY_RANDOM_H
#define KVA_TOOLS_VERIFY_RANDOM_H

#include "tools/verify/cases.h"

enum { KVA_RANDOM_RANK = 5 };

typedef struct kva_random {
  kva_arena *arena;
  kva_case *c;
  uint32_t number;
  uint64_t stream, drawn;
} kva_random;

/* Uniform in [lo, hi]. */
int64_t kva_random_int(kva_random *r, int64_t lo, int64_t hi);
static inline bool kva_random_chance(kva_random *r, int64_t one_in) {
  return kva_random_int(r, 1, one_in) == 1;
}

typedef struct kva_extents {
  uint32_t rank;
  int64_t v[2 * KVA_RANDOM_RANK];
} kva_extents;
/* lo <= rank <= hi, small extents, odd or 1, about a hundred elements at most; with `zero` one extent is sometimes
 * 0. */
kva_extents kva_random_extents(kva_random *r, uint32_t lo, uint32_t hi, bool zero);
/* Concatenates x and y. */
kva_extents kva_extents_join(kva_extents x, kva_extents y);
/* Axes [from, to). */
kva_extents kva_extents_part(const kva_extents *x, uint32_t from, uint32_t to);

/* "3,5,1" */
const char *kva_extents_text(kva_random *r, kva_extents x);
/* Appends an operand with that shape, values of the case's dtype. */
kva_case_operand *kva_random_operand(kva_random *r, kva_extents x);
/* Appends an operand of int64 indices in [-extent, extent). */
void kva_random_indices(kva_random *r, kva_extents x, int64_t extent);
/* Sets the case's attributes. */
void kva_random_attrs(kva_random *r, const char *fmt, ...) KVA_PRINTF(2, 3);

/* Generators of random_move.c and random_nn.c; false: not their operator. */
bool kva_random_has_attr(const kva_random *r, const char *name);

/* Generators of random_move.c and random_nn.c, by operator; NULL: not one of theirs. */
typedef void (*kva_random_fn)(kva_random *r);
kva_random_fn kva_random_move(kva_op_id op);
kva_random_fn kva_random_nn(kva_op_id op);

#endif
