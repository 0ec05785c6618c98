/* Elements that a GPU thread keeps in registers. Loops over one row deal the same elements to the same threads. If a
 * thread's share is a few rounds of straight-line code, later loops reuse what an earlier one loaded, and loads that
 * are the same for all rows of a subgroup (a norm's scale) are hoisted before the first row. So memory is read once.
 *
 * The key of an element is its buffer, its index with a placeholder for the loop's variable, and how the loop is dealt
 * out: extent, step, lanes, round. A kept value dominates the rest of the region where its loop stands, and is dropped
 * at that region's end. */
#include "codegen/llvm_internal.h"

/* Elements of one load, in all rounds, that always may be kept. Bytes of all kept elements, if the load is the loop's
 * only one: of a thread with 128 registers, and of a thread with all 255. */
enum { MAX_KEPT_ELEMENTS = 32, MAX_KEPT_BYTES = 256, MAX_KEPT_BYTES_OF_FEW = 544, FEW_THREADS = 256 };

typedef struct search {
  const kva_emit *e;
  const kva_kregion *around; /* symbols with values in here are excluded */
  const kva_expr *allowed;
  bool found;
} search;

static void look(void *user, const kva_expr *symbol) {
  search *s = user;
  if (symbol == s->allowed) return;
  const kva_kregion *r = kva_k_symbol_region(s->e->k, symbol);
  s->found |= r && kva_k_encloses(s->around, r);
}

static bool is_readable(const kva_kinstr *i) {
  return i->op == KVA_K_LOAD && !i->n_args && i->buf->space == KVA_K_PARAM && !i->buf->written &&
         kva_dtype_bits(i->buf->dtype) >= 8;
}

static kva_kept key_of(kva_emit *e, const kva_kinstr *i) {
  KVA_ASSERT(e->share.loop && i->op == KVA_K_LOAD);
  const kva_share *s = &e->share;
  if (!e->element) e->element = kva_expr_fresh(e->k->exprs, "element", 0, NULL);
  return (kva_kept){.buf = i->buf,
                    .index = kva_expr_substitute(e->k->exprs, i->index, 1, &s->loop->var, &e->element),
                    .extent = s->loop->extent,
                    .step = s->step,
                    .round = s->round,
                    .part = s->part,
                    .lanes = e->lanes.n};
}

static bool same_key(const kva_kept *a, const kva_kept *b) {
  return a->buf == b->buf && a->index == b->index && a->extent == b->extent && a->step == b->step &&
         a->round == b->round && a->part == b->part && a->lanes == b->lanes;
}

/* The only load in its region whose index depends on l's variable. */
static bool is_sole_load(const kva_kinstr *load, const kva_kloop *l) {
  for (const kva_kinstr *i = load->region->first; i; i = i->next)
    if (i != load && i->op == KVA_K_LOAD && kva_expr_uses(i->index, l->var)) return false;
  return true;
}

LLVMValueRef kva_ll_kept(kva_emit *e, const kva_kinstr *i) {
  kva_kept key = key_of(e, i);
  for (uint32_t k = 0; k < e->kept.len; k++)
    if (same_key(&key, &e->kept.data[k])) return e->kept.data[k].value;
  return NULL;
}

/* Bytes that the thread keeps of other rows or buffers than those of i. */
static int64_t bytes_of_others(kva_emit *e, const kva_kinstr *i) {
  kva_kept key = key_of(e, i);
  int64_t bits = 0;
  for (uint32_t k = 0; k < e->kept.len; k++) {
    const kva_kept *o = &e->kept.data[k];
    bool same = o->buf == key.buf && o->index == key.index && o->extent == key.extent;
    if (!same) bits += (int64_t)o->lanes * kva_dtype_bits(o->buf->dtype);
  }
  return bits / 8;
}

int64_t kva_ll_kept_bytes(const kva_emit *e) {
  uint32_t blocks = e->k->blocks ? e->k->blocks : 1;
  return e->k->threads * blocks <= FEW_THREADS ? MAX_KEPT_BYTES_OF_FEW : MAX_KEPT_BYTES;
}

bool kva_ll_may_keep(kva_emit *e, const kva_kinstr *i) {
  const kva_share *s = &e->share;
  if (!s->loop || i->region != s->loop->body || !is_readable(i) || !kva_expr_uses(i->index, s->loop->var)) return false;
  int64_t elements = s->rounds * e->lanes.n;
  if (elements <= MAX_KEPT_ELEMENTS || kva_ll_kept(e, i)) return true;
  int64_t bytes = elements * kva_dtype_bits(i->buf->dtype) / 8;
  return is_sole_load(i, s->loop) && bytes + bytes_of_others(e, i) <= kva_ll_kept_bytes(e);
}

void kva_ll_keep(kva_emit *e, const kva_kinstr *i, LLVMValueRef value) {
  KVA_ASSERT(value && is_readable(i));
  kva_kept kept = key_of(e, i);
  kept.value = value;
  KVA_PUSH(e->scratch, &e->loaded, kept);
}

void kva_ll_end_round(kva_emit *e, LLVMBasicBlockRef skipped, LLVMBasicBlockRef loaded) {
  for (uint32_t k = 0; k < e->loaded.len; k++) {
    kva_kept kept = e->loaded.data[k];
    if (skipped) {
      LLVMTypeRef type = LLVMTypeOf(kept.value);
      LLVMValueRef phi = LLVMBuildPhi(e->b, type, ""), values[] = {kept.value, LLVMGetPoison(type)};
      LLVMBasicBlockRef from[] = {loaded, skipped};
      LLVMAddIncoming(phi, values, from, 2);
      kept.value = phi;
    }
    KVA_PUSH(e->scratch, &e->kept, kept);
  }
  e->loaded.len = 0;
}

bool kva_ll_is_row_invariant(const kva_emit *e, const kva_kinstr *i, const kva_kloop *l, const kva_kloop *rows) {
  search s = {e, rows->body, l->var, false};
  if (!is_readable(i) || !kva_expr_uses(i->index, l->var)) return false;
  kva_expr_each_symbol(i->index, look, &s);
  return !s.found && !kva_expr_uses(i->index, rows->var);
}
