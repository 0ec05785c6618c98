/* Shared by the kernel_*.c files of the builder; nobody else includes it. */
#ifndef KVA_IR_KERNEL_INTERNAL_H
#define KVA_IR_KERNEL_INTERNAL_H

#include "ir/kernel.h"

struct kva_kb_memo {
  kva_map *pure;          /* pure_key -> instruction, see kernel_build.c */
  kva_map *loops;         /* region and hash -> pure loops that stand there, see kernel_loop.c */
  kva_map *symbol_loops;  /* loop variable -> loop */
  kva_map *symbol_values; /* value symbol -> instruction */
  kva_map *value_symbols; /* and back */
  kva_map *results;       /* loop -> its REDUCE instructions, one a carry */
};

/* A loop that turned out equal to an earlier one is dropped when it ends, but the caller may hold its results. They
 * stay unlinked and forward to the earlier ones; every function of the builder reads its operands through this. */
static inline kva_kval kva_kb_resolve(kva_kval v) {
  while (v && v->op == KVA_K_REDUCE && !v->region && v->args[0]) v = v->args[0];
  return v;
}

static inline void *kva_kb_get(const kva_map *map, const void *pointer) {
  return kva_map_get(map, &pointer, sizeof pointer);
}
static inline void kva_kb_set(kva_map *map, const void *pointer, const void *value) {
  kva_map_set(map, &pointer, sizeof pointer, (void *)value);
}

static inline kva_kregion *kva_kb_deeper(kva_kregion *a, kva_kregion *b) {
  return b->depth > a->depth ? b : a;
}

/* The region where `symbol` has a value; the kernel's body for shape symbols. */
kva_kregion *kva_kb_symbol_region(const kva_kb *b, const kva_expr *symbol);
/* The deepest of these over the symbols of e. */
kva_kregion *kva_kb_expr_region(const kva_kb *b, const kva_expr *e);
/* Links i into r, which is open: before the instruction of r on the path to the current region. */
void kva_kb_link(const kva_kb *b, kva_kregion *r, kva_kinstr *i);
/* Makes the pure instruction `proto` (never linked itself) where its operands allow, or finds an equal one. */
kva_kval kva_kb_pure(kva_kb *b, const kva_kinstr *proto);
/* What moves out: a load that is not linked yet, or a loop with loads in it; neither: code that cannot fail. */
typedef struct kva_khoist {
  kva_expr_ctx *exprs;
  const kva_kinstr *load;
  const kva_kloop *loop;
} kva_khoist;
/* The outermost region, from `from` (current) up to `lowest` (where the operands allow it), that it may move to. */
kva_kregion *kva_kb_hoist(const kva_khoist *h, kva_kregion *from, kva_kregion *lowest);
/* Is this a load whose value another instruction may change? */
bool kva_kb_is_ordered(const kva_kbuf *buf);
bool kva_kb_is_const(const kva_kinstr *v);

#endif
