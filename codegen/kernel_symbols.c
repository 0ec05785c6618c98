/* The shape symbols that a kernel reads. */
#include "codegen/codegen.h"

typedef struct collection {
  kva_arena *arena;
  const kva_kernel *k;
  KVA_VEC(const kva_expr *) symbols;
} collection;

static void add(void *user, const kva_expr *symbol) {
  KVA_ASSERT(symbol->kind == KVA_EXPR_SYMBOL);
  collection *c = user;
  if (symbol->extent || kva_k_symbol_region(c->k, symbol)) return; /* a loop's variable, or a value */
  for (uint32_t i = 0; i < c->symbols.len; i++) {
    if (c->symbols.data[i] == symbol) return;
  }
  KVA_PUSH(c->arena, &c->symbols, symbol);
}

static void add_all(void *user, const kva_expr **e) {
  kva_expr_each_symbol(*e, add, user);
}

static void visit(void *user, kva_kinstr *i) {
  kva_k_each_index(i, add_all, user);
}

uint32_t kva_codegen_symbols(const kva_kernel *k, kva_arena *arena, const kva_expr *const **out_symbols) {
  collection c = {.arena = arena, .k = k};
  kva_k_each_instr(k, visit, &c);
  *out_symbols = c.symbols.data;
  return c.symbols.len;
}
