/* Structure of the kernel IR: creating and linking instructions, regions and loops; walking; replacing index symbols.
 *
 * Invariant: region->parent and region->depth are correct for every region below the kernel's body. Linking the owning
 * instruction (kva_k_insert) sets them, so an instruction moves with everything in it. */
#include "ir/kernel.h"

/* ---- names and types --------------------------------------------------------------------------------------------- */

static const char *const op_names[] = {
#define NAME(name, n) #name,
    KVA_K_ARITH(NAME)
#undef NAME
        "const",
    "index",
    "convert",
    "bitcast",
    "narrow",
    "load",
    "store",
    "loop",
    "reduce",
    "carry",
    "if",
    "barrier",
    "intrinsic",
};
static const uint8_t op_arities[] = {
#define ARITY(name, n) n,
    KVA_K_ARITH(ARITY)
#undef ARITY
};
static const char *const loop_kind_names[] = {"parallel", "grid", "serial", "unroll", "vector", "thread"};
static const char *const combine_names[] = {"none", "add", "mul", "max", "min", "and", "or"};

const char *kva_kop_name(kva_kop op) {
  KVA_ASSERT((size_t)op < sizeof op_names / sizeof *op_names);
  return op_names[op];
}

uint32_t kva_kop_arity(kva_kop op) {
  return op < KVA_K_CONST ? op_arities[op] : 0;
}

kva_dtype kva_kop_result_type(kva_kop op, kva_dtype operand) {
  bool is_test = op == KVA_K_eq || op == KVA_K_ne || op == KVA_K_lt || op == KVA_K_le || op == KVA_K_isnan;
  return is_test ? KVA_BOOL : operand;
}

const char *kva_kloop_kind_name(kva_kloop_kind kind) {
  KVA_ASSERT((size_t)kind < sizeof loop_kind_names / sizeof *loop_kind_names);
  return loop_kind_names[kind];
}

const char *kva_combine_name(kva_combine combine) {
  KVA_ASSERT((size_t)combine < sizeof combine_names / sizeof *combine_names);
  return combine_names[combine];
}

kva_dtype kva_k_compute_type(kva_dtype t) {
  switch (t) {
  case KVA_BOOL:
  case KVA_F64:
  case KVA_I8:
  case KVA_I16:
  case KVA_I32:
  case KVA_I64:
  case KVA_U8:
  case KVA_U16:
  case KVA_U32:
  case KVA_U64: return t;
  case KVA_I4:
  case KVA_I2: return KVA_I8;
  case KVA_U4:
  case KVA_U2: return KVA_U8;
  default: return kva_dtype_is_float(t) ? KVA_F32 : KVA_DTYPE_NONE;
  }
}

/* ---- creating and linking ---------------------------------------------------------------------------------------- */

kva_kernel *kva_kernel_create(kva_arena *arena, kva_expr_ctx *exprs, const char *name) {
  kva_kernel *k = KVA_NEW(arena, kva_kernel);
  k->arena = arena;
  k->exprs = exprs;
  k->name = kva_arena_strdup(arena, name);
  k->body = kva_k_region_create(k, NULL);
  return k;
}

kva_kregion *kva_k_region_create(kva_kernel *k, kva_kinstr *owner) {
  kva_kregion *r = KVA_NEW(k->arena, kva_kregion);
  r->owner = owner;
  return r;
}

kva_kinstr *kva_k_instr_create(kva_kernel *k, kva_kop op, kva_dtype dtype) {
  kva_kinstr *i = KVA_NEW(k->arena, kva_kinstr);
  i->op = op;
  i->dtype = dtype;
  i->id = k->next_id++;
  return i;
}

kva_kloop *kva_k_loop_create(kva_kernel *k, kva_kloop_kind kind, const kva_expr *extent, const char *name) {
  kva_kloop *l = KVA_NEW(k->arena, kva_kloop);
  l->kind = kind;
  l->extent = extent;
  l->var = kva_expr_fresh(k->exprs, kva_arena_strdup(k->arena, name), 0, extent);
  l->instr = kva_k_instr_create(k, KVA_K_LOOP, KVA_DTYPE_NONE);
  l->instr->loop = l;
  l->body = kva_k_region_create(k, l->instr);
  KVA_PUSH(k->arena, &k->loops, l);
  return l;
}

static void set_parent(kva_kregion *r, kva_kregion *parent);

static void set_parents_below(kva_kinstr *i) {
  if (i->op == KVA_K_LOOP) set_parent(i->loop->body, i->region);
  if (i->then) set_parent(i->then, i->region);
  if (i->orelse) set_parent(i->orelse, i->region);
}

static void set_parent(kva_kregion *r, kva_kregion *parent) {
  r->parent = parent;
  r->depth = parent->depth + 1;
  for (kva_kinstr *i = r->first; i; i = i->next) set_parents_below(i);
}

void kva_k_insert(kva_kregion *r, kva_kinstr *before, kva_kinstr *i) {
  KVA_ASSERT(!i->region && (!before || before->region == r));
  i->region = r;
  i->next = before;
  i->prev = before ? before->prev : r->last;
  *(i->prev ? &i->prev->next : &r->first) = i;
  *(i->next ? &i->next->prev : &r->last) = i;
  set_parents_below(i);
}

void kva_k_unlink(kva_kinstr *i) {
  KVA_ASSERT(i->region && (i->prev ? i->prev->next : i->region->first) == i);
  *(i->prev ? &i->prev->next : &i->region->first) = i->next;
  *(i->next ? &i->next->prev : &i->region->last) = i->prev;
  i->prev = i->next = NULL;
  i->region = NULL;
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

void kva_k_each_instr_in(const kva_kregion *r, void (*visit)(void *user, kva_kinstr *i), void *user) {
  for (kva_kinstr *i = r->first, *next; i; i = next) {
    next = i->next;
    visit(user, i);
    if (!i->region) continue;
    if (i->op == KVA_K_LOOP) kva_k_each_instr_in(i->loop->body, visit, user);
    if (i->then) kva_k_each_instr_in(i->then, visit, user);
    if (i->orelse) kva_k_each_instr_in(i->orelse, visit, user);
  }
}

void kva_k_each_instr(const kva_kernel *k, void (*visit)(void *user, kva_kinstr *i), void *user) {
  kva_k_each_instr_in(k->body, visit, user);
}

void kva_k_each_index(kva_kinstr *i, void (*visit)(void *user, const kva_expr **e), void *user) {
  if (i->index) visit(user, &i->index);
  if (i->op == KVA_K_LOOP) visit(user, &i->loop->extent);
  if (i->op == KVA_K_LOOP && i->loop->peel) visit(user, &i->loop->peel);
  if (i->op != KVA_K_INTRINSIC) return;
  for (uint32_t p = 0; p < KVA_K_MAX_PLACES; p++) {
    if (i->intrinsic->places[p].index) visit(user, &i->intrinsic->places[p].index);
  }
  for (uint32_t x = 0; x < KVA_K_MAX_INDICES; x++) {
    if (i->intrinsic->indices[x]) visit(user, &i->intrinsic->indices[x]);
  }
}

bool kva_k_encloses(const kva_kregion *outer, const kva_kregion *inner) {
  while (inner && inner->depth > outer->depth) inner = inner->parent;
  return inner == outer;
}

kva_kregion *kva_k_symbol_region(const kva_kernel *k, const kva_expr *symbol) {
  for (uint32_t i = 0; i < k->loops.len; i++) {
    if (k->loops.data[i]->var == symbol) return k->loops.data[i]->body;
  }
  for (uint32_t i = 0; i < k->value_symbols.len; i++) {
    if (k->value_symbols.data[i] == symbol) return k->values.data[i]->region;
  }
  return NULL;
}

typedef struct replacement {
  kva_expr_ctx *exprs;
  uint32_t n;
  const kva_expr *const *from, *const *to;
} replacement;

static void replace_in_index(void *user, const kva_expr **e) {
  const replacement *r = user;
  *e = kva_expr_substitute(r->exprs, *e, r->n, r->from, r->to);
}

static void replace_in_instr(void *user, kva_kinstr *i) {
  kva_k_each_index(i, replace_in_index, user);
}

void kva_k_replace_index(kva_kernel *k, uint32_t n, const kva_expr *const *from, const kva_expr *const *to) {
  replacement r = {k->exprs, n, from, to};
  kva_k_each_instr(k, replace_in_instr, &r);
}
