/* Uses of shape symbols in types and attributes, found and replaced. */
#include "passes/passes_internal.h"

typedef struct replacement {
  kva_module *m;
  const kva_expr *symbol;
  kva_dim to;
} replacement;

static bool dims_use(uint32_t n, const kva_dim *dims, const kva_expr *symbol) {
  for (uint32_t i = 0; i < n; i++)
    if (dims[i] && kva_expr_uses(dims[i], symbol)) return true;
  return false;
}

static bool type_uses(const kva_type *t, const kva_expr *symbol) {
  return t->kind == KVA_TYPE_TENSOR && dims_use(t->rank, t->dims, symbol);
}

/* The expressions of field i of n's attributes, as an array. */
static kva_dims field_dims(const kva_node *n, uint32_t i) {
  const kva_attr_field *f = &n->op->attrs->fields[i];
  const void *at = (const char *)n->attrs + f->offset;
  if (f->kind == KVA_ATTR_DIM) return (kva_dims){1, at};
  return f->kind == KVA_ATTR_DIMS ? *(const kva_dims *)at : (kva_dims){0};
}

static bool node_uses(const kva_node *n, const kva_expr *symbol) {
  for (uint32_t r = 0; r < n->n_results; r++)
    if (type_uses(n->results[r].type, symbol)) return true;
  for (uint32_t i = 0; n->attrs && i < n->op->attrs->n_fields; i++) {
    kva_dims dims = field_dims(n, i);
    if (dims_use(dims.n, dims.v, symbol)) return true;
  }
  for (uint32_t i = 0; i < n->n_graphs; i++)
    if (kva_uses_symbol(n->graphs[i]->first, symbol)) return true;
  return false;
}

bool kva_uses_symbol(const kva_node *first, const kva_expr *symbol) {
  for (const kva_node *n = first; n; n = n->next)
    if (node_uses(n, symbol)) return true;
  return false;
}

/* ---- replacing --------------------------------------------------------------------------------------------------- */

static kva_dim replaced(const replacement *r, kva_dim e) {
  return e ? kva_expr_substitute(r->m->exprs, e, 1, &r->symbol, &r->to) : NULL;
}

static const kva_dim *replaced_dims(const replacement *r, uint32_t n, const kva_dim *dims) {
  kva_dim *copy = KVA_NEW_ARRAY(r->m->arena, kva_dim, n);
  for (uint32_t i = 0; i < n; i++) copy[i] = replaced(r, dims[i]);
  return copy;
}

static const kva_type *replaced_type(const replacement *r, const kva_type *t) {
  if (!type_uses(t, r->symbol)) return t;
  return kva_type_tensor(r->m, t->dtype, t->rank, replaced_dims(r, t->rank, t->dims));
}

/* Copies of a node share its attributes, so that these are written to a copy of their own. */
static void replace_in_attrs(const replacement *r, kva_node *n) {
  bool renames = r->to->kind == KVA_EXPR_SYMBOL;
  void *attrs = kva_arena_memdup(r->m->arena, n->attrs, n->op->attrs->size);
  for (uint32_t i = 0; i < n->op->attrs->n_fields; i++) {
    const kva_attr_field *f = &n->op->attrs->fields[i];
    void *at = (char *)attrs + f->offset;
    if (f->kind == KVA_ATTR_DIM) *(kva_dim *)at = replaced(r, *(kva_dim *)at);
    if (f->kind != KVA_ATTR_DIMS && !(f->kind == KVA_ATTR_SYMBOLS && renames)) continue;
    kva_dims *dims = at;
    dims->v = replaced_dims(r, dims->n, dims->v);
  }
  n->attrs = attrs;
}

static void replace_in_graph(const replacement *r, kva_graph *g) {
  for (uint32_t i = 0; i < g->inputs.len; i++) g->inputs.data[i]->type = replaced_type(r, g->inputs.data[i]->type);
  for (kva_node *n = g->first; n; n = n->next) {
    kva_dims binds = kva_node_binds(n);
    if (n->attrs && (node_uses(n, r->symbol) || dims_use(binds.n, binds.v, r->symbol))) replace_in_attrs(r, n);
    for (uint32_t k = 0; k < n->n_results; k++) n->results[k].type = replaced_type(r, n->results[k].type);
    for (uint32_t i = 0; i < n->n_graphs; i++) replace_in_graph(r, n->graphs[i]);
  }
}

void kva_replace_symbol(kva_graph *g, const kva_expr *symbol, kva_dim to) {
  KVA_ASSERT(symbol->kind == KVA_EXPR_SYMBOL && !kva_expr_uses(to, symbol));
  replace_in_graph(&(replacement){.m = g->module, .symbol = symbol, .to = to}, g);
}
