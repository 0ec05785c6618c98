/* Hand-written kernels, for operators whose rows say KERNEL (ops/ops.def). A kernel is a row of a table: operator, kind
 * of target, a predicate over target and node, an emitter. The first row that accepts a node emits its code: nv/ comes
 * before cpu/, cpu/ before any/. A missing folder omits its rows. */
#ifndef KVA_KERNELS_KERNELS_H
#define KVA_KERNELS_KERNELS_H

#include "ops/ops.h"

/* Kinds of targets that a row is for. */
typedef enum kva_kernel_kind { KVA_FOR_CPU = 1 << KVA_TARGET_CPU, KVA_FOR_GPU = 1 << KVA_TARGET_GPU } kva_kernel_kind;
enum { KVA_FOR_ANY = KVA_FOR_CPU | KVA_FOR_GPU };

typedef struct kva_kernel_row {
  kva_op_id op;
  const char *name;
  uint32_t kinds;
  /* Why the kernel does not suit n on l->target, in a few words ("integers"); NULL: it does. May emit code in l->kb to
   * analyse operands: l's kernel is discarded. */
  const char *(*refuses)(kva_lower *l, const kva_node *n);
  /* Writes the whole kernel of an accepted node. */
  void (*emit)(kva_lower *l, const kva_node *n);
} kva_kernel_row;

/* Result of a walk over the table. */
enum { KVA_MAX_REFUSALS = 8 };
typedef struct kva_kernel_choice {
  const kva_kernel_row *row; /* NULL: none accepts the node */
  uint32_t n_refused;        /* rows of this kind of target that refused before it */
  const kva_kernel_row *refused[KVA_MAX_REFUSALS];
  const char *reasons[KVA_MAX_REFUSALS];
} kva_kernel_choice;

/* The first row that accepts n. See kva_kernel_row.refuses for l. */
kva_kernel_choice kva_kernel_choose(kva_lower *l, const kva_node *n);

/* A predicate that refuses nothing. */
const char *kva_kernel_takes_all(kva_lower *l, const kva_node *n);

static inline int64_t kva_ceil_div(int64_t x, int64_t by) {
  return (x + by - 1) / by;
}

/* Opens nested loops over `n` extents; out_vars[k] become their variables. */
void kva_nest_begin(kva_lower *l, kva_kloop_kind kind, uint32_t n, const kva_dim *extents, kva_kloop **out_loops,
                    const kva_expr **out_vars);
void kva_nest_end(kva_lower *l, uint32_t n, kva_kloop *const *loops);

#define KERNEL(op, name, kinds, refuses, emit)             \
  const char *refuses(kva_lower *l, const kva_node *node); \
  void emit(kva_lower *l, const kva_node *node);
#include "codegen/kernels/kernels.def"
#undef KERNEL

#endif
