/* Which values differ between the lanes of a vector loop, and whether a loop can run in lanes at all. */
#include "codegen/llvm_internal.h"

typedef struct marking {
  kva_emit *e;
  bool changed;
} marking;

bool kva_ll_carry_varying(const kva_emit *e, const kva_kcarry *c) {
  return e->varying[c->init->id] || e->varying[c->yield->id];
}

static bool instr_varies(const kva_emit *e, const kva_kinstr *i) {
  if (i->op == KVA_K_LOOP || i->op == KVA_K_STORE || i->op == KVA_K_IF || i->op == KVA_K_BARRIER) return false;
  if (i->op == KVA_K_INTRINSIC) return false; /* its loop does not run in lanes */
  if (i->op == KVA_K_REDUCE || i->op == KVA_K_CARRY) return kva_ll_carry_varying(e, &i->loop->carries.data[i->carry]);
  if (i->index && kva_ll_expr_varying(e, i->index)) return true;
  for (uint32_t a = 0; a < i->n_args; a++) {
    if (e->varying[i->args[a]->id]) return true;
  }
  return false;
}

static void mark(void *user, kva_kinstr *i) {
  marking *m = user;
  if (m->e->varying[i->id] || !instr_varies(m->e, i)) return;
  m->e->varying[i->id] = m->changed = true;
}

static void unmark(void *user, kva_kinstr *i) {
  ((kva_emit *)user)->varying[i->id] = false;
}

/* Iterates to a fixed point: a carry varies if its yielded value does, which comes later in the text. */
void kva_ll_mark_varying(kva_emit *e, const kva_kloop *l) {
  kva_k_each_instr_in(l->body, unmark, e);
  if (e->lanes.n == 1) return;
  marking m = {e, true};
  while (m.changed) {
    m.changed = false;
    kva_k_each_instr_in(l->body, mark, &m);
  }
}

typedef struct legality {
  const kva_emit *e;
  bool ok;
} legality;

static void check(void *user, kva_kinstr *i) {
  legality *c = user;
  if (i->op == KVA_K_INTRINSIC) c->ok = false;
  if (i->op == KVA_K_LOOP && kva_ll_expr_varying(c->e, i->loop->extent)) c->ok = false;
  if (i->op == KVA_K_STORE && kva_dtype_bits(i->buf->dtype) < 8) c->ok = false;
}

bool kva_ll_vectorizable(kva_emit *e, const kva_kloop *l) {
  for (uint32_t c = 0; c < l->carries.len; c++) {
    if (l->carries.data[c].combine == KVA_COMBINE_NONE || l->strict_order) return false;
  }
  kva_ll_mark_varying(e, l);
  legality c = {e, true};
  kva_k_each_instr_in(l->body, check, &c);
  return c.ok;
}

static void widest(void *user, kva_kinstr *i) {
  int *bits = user;
  kva_dtype t = i->op == KVA_K_LOAD || i->op == KVA_K_STORE ? i->buf->dtype
                : i->op == KVA_K_REDUCE                     ? i->dtype
                                                            : KVA_F32;
  if (kva_dtype_is_float(t) && kva_dtype_bits(t) > *bits) *bits = kva_dtype_bits(t);
}

typedef struct bytes {
  const kva_expr *lane;
  bool load, only;
} bytes;

/* What has no value, is the same in all lanes, or is a byte. */
static void check_bytes(void *user, kva_kinstr *i) {
  bytes *b = user;
  bool is_memory = i->op == KVA_K_LOAD || i->op == KVA_K_STORE, has_value = i->dtype != KVA_DTYPE_NONE;
  b->load |= i->op == KVA_K_LOAD;
  if (is_memory && kva_dtype_bits(i->buf->dtype) != 8) b->only = false;
  if (i->op == KVA_K_INDEX && !kva_expr_uses(i->index, b->lane)) return;
  if (has_value && i->dtype != KVA_BOOL && kva_dtype_bits(i->dtype) != 8) b->only = false;
}

static bool moves_bytes(const kva_kloop *l) {
  bytes b = {l->var, false, true};
  kva_k_each_instr_in(l->body, check_bytes, &b);
  return b.load && b.only;
}

/* As many lanes as a register holds of the widest float in memory or in a reduction, which count as 32 bits at least
 * where not all is bytes; `width` registers then; fewer for short loops. */
unsigned kva_ll_lane_count(const kva_emit *e, const kva_kloop *l) {
  int bits = moves_bytes(l) ? 8 : 32;
  kva_k_each_instr_in(l->body, widest, &bits);
  for (uint32_t c = 0; c < l->carries.len; c++) {
    if (l->carries.data[c].dtype == KVA_F64) bits = 64;
  }
  unsigned lanes = (unsigned)(e->cg->target.vector_bytes * 8 / bits);
  if (l->width > 1 && bits >= 32) lanes *= l->width;
  int64_t extent;
  if (!kva_expr_is_const(l->extent, &extent)) return lanes;
  while (lanes > 2 && (int64_t)lanes / 2 >= extent) lanes /= 2;
  return lanes;
}
