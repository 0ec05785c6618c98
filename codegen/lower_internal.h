/* Shared by the lower*.c files. */
#ifndef KVA_CODEGEN_LOWER_INTERNAL_H
#define KVA_CODEGEN_LOWER_INTERNAL_H

#include "codegen/codegen.h"

typedef struct kva_lowering_output {
  const kva_value *value; /* of the group, or the bare node's result */
  kva_kbuf *buf;
} kva_lowering_output;

/* An element of a whole-kernel operator's result, during the computation of the group's outputs that depend on it. */
typedef struct kva_bound {
  uint32_t result;
  const kva_expr *const *idx;
  kva_kval value;
  bool reshaped; /* a reshape on the way to the output splits and joins the index, which may then have another form */
} kva_bound;

typedef struct kva_lowering {
  kva_lower l; /* first member: callbacks get its address */
  kva_arena *arena;
  const kva_node *node;
  const kva_graph *group; /* NULL: a bare node */
  kva_map *bufs;          /* operand or graph input -> parameter */
  kva_map *outer;         /* graph input -> operand */
  kva_map *memo;
  uint32_t n_outputs;
  kva_lowering_output *outputs;
  const kva_node *tile; /* the whole-kernel operator, or NULL */
  kva_bound bound;
  bool failed;
} kva_lowering;

kva_kval kva_lowering_value(kva_lowering *w, const kva_value *v, const kva_expr *const *idx);
void kva_lowering_write(kva_lowering *w, const kva_lowering_output *o, const kva_expr *const *idx, kva_kval v);
/* Reports (once) that n cannot be compiled; returns a placeholder value. */
kva_kval kva_lowering_fail(kva_lowering *w, const kva_node *n, kva_dtype type, const char *fmt, ...) KVA_PRINTF(4, 5);

/* Moves the outputs that satisfy `wanted`, given the first one's node, to the front; returns their number. n > 0. */
uint32_t kva_lowering_put_first(uint32_t n, const kva_lowering_output **outputs,
                                bool (*wanted)(const kva_lowering_output *o, const kva_node *def));
/* Stores all elements of the outputs whose first `depth` indices are idx. */
void kva_lowering_outputs(kva_lowering *w, uint32_t n, const kva_lowering_output **outputs, uint32_t depth,
                          const kva_expr **idx);

/* lower_partial.c: emits a group with partial sums of rows (kv.partial_sum); false: it has none. May reorder `outputs`,
 * which are all of w's. */
bool kva_lowering_partial_sums(kva_lowering *w, const kva_lowering_output **outputs);

/* lower_tile.c: kva_lower.store, and the tile's result while an element is being stored. */
void kva_lowering_store(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx, kva_kval v);
kva_kval kva_lowering_bound(kva_lowering *w, const kva_node *n, uint32_t result, const kva_expr *const *idx);

#endif
