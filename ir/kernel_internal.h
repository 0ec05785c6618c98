/* Shared by the kernel_*.c files of the builder and private to them. */
#ifndef KVA_IR_KERNEL_INTERNAL_H
#define KVA_IR_KERNEL_INTERNAL_H

#include "ir/kernel.h"

struct kva_kb_memo {
  kva_map *pure;          /* pure_key -> instruction, see kernel_build.c */
  kva_map *loops;         /* region and hash -> pure loops in that region, see kernel_loop.c */
  kva_map *symbol_loops;  /* loop variable -> loop */
  kva_map *symbol_values; /* value symbol -> instruction */
  kva_map *value_symbols; /* and back */
  kva_map *results;       /* loop -> its REDUCE instructions, one for each carry */
};

/* A loop that equals an earlier one is dropped when it ends, but the caller may hold its results. They stay unlinked
 * and forward to the earlier loop's; every function of the builder resolves its operands through this. */
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

/* The region in which `symbol` is defined; the kernel's body for shape symbols. */
kva_kregion *kva_kb_symbol_region(const kva_kb *b, const kva_expr *symbol);
/* The deepest of these over the symbols of e. */
kva_kregion *kva_kb_expr_region(const kva_kb *b, const kva_expr *e);
/* Links i into the open region r, before r's instruction on the path to the current region. */
void kva_kb_link(const kva_kb *b, kva_kregion *r, kva_kinstr *i);
/* Places the pure instruction `proto` (never linked itself) where its operands allow, or finds an equal one. */
kva_kval kva_kb_pure(kva_kb *b, const kva_kinstr *proto);
/* What is hoisted: an unlinked load, or a loop that contains loads; neither: code that cannot fault. */
typedef struct kva_khoist {
  kva_expr_ctx *exprs;
  const kva_kinstr *load;
  const kva_kloop *loop;
} kva_khoist;
/* The outermost region, between `from` (current) and `lowest` (where the operands allow it), to which it may move. */
kva_kregion *kva_kb_hoist(const kva_khoist *h, kva_kregion *from, kva_kregion *lowest);
/* Another instruction may change values in buf, so loads from it are ordered. */
bool kva_kb_is_ordered(const kva_kbuf *buf);
bool kva_kb_is_const(const kva_kinstr *v);

#endif
