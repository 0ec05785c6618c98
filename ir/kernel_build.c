/* The builder: placement, sharing of equal instructions, loads and stores under guards, ifs. kernel_ops.c has
 * arithmetic, kernel_loop.c loops, kernel_place.c the placement of pure instructions.
 *
 * The open regions form a path from the kernel's body to the current region. In an open region R, instructions are
 * inserted before the open loop or if on the path. Hence exactly the values of the regions on the path are visible:
 * visibility is a test on regions alone. */
#include "ir/kernel_internal.h"

/* Key under which pure instructions are equal. Zeroed before it is filled, because its bytes, padding included, are
 * compared. */
typedef struct pure_key {
  uint32_t op, dtype, n_args;
  uint32_t args[3];
  int64_t imm;
  const kva_expr *index;
  const kva_kbuf *buf;
  const kva_kregion *region;
} pure_key;

kva_kb *kva_kb_create(kva_kernel *k) {
  kva_kb *b = KVA_NEW(k->arena, kva_kb);
  b->kernel = k;
  b->arena = k->arena;
  b->exprs = k->exprs;
  b->region = k->body;
  b->memo = KVA_NEW(k->arena, struct kva_kb_memo);
  b->memo->pure = kva_map_create(k->arena);
  b->memo->loops = kva_map_create(k->arena);
  b->memo->symbol_loops = kva_map_create(k->arena);
  b->memo->symbol_values = kva_map_create(k->arena);
  b->memo->value_symbols = kva_map_create(k->arena);
  b->memo->results = kva_map_create(k->arena);
  return b;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static kva_kbuf *add_buffer(kva_kb *b, kva_kspace space, const char *name, kva_dtype dtype, const kva_expr *extent) {
  kva_kbuf *buf = KVA_NEW(b->arena, kva_kbuf);
  *buf = (kva_kbuf){.space = space, .dtype = dtype, .extent = extent, .id = b->kernel->bufs.len};
  buf->name = kva_arena_strdup(b->arena, name);
  KVA_PUSH(b->arena, &b->kernel->bufs, buf);
  return buf;
}

kva_kbuf *kva_k_param(kva_kb *b, const char *name, kva_dtype dtype, const kva_expr *extent) {
  uint32_t n = b->kernel->bufs.len;
  KVA_ASSERT(!n || b->kernel->bufs.data[n - 1]->space == KVA_K_PARAM); /* ids: parameters first */
  return add_buffer(b, KVA_K_PARAM, name, dtype, extent);
}

kva_kbuf *kva_k_local(kva_kb *b, const char *name, kva_dtype dtype, int64_t extent) {
  return add_buffer(b, KVA_K_LOCAL, name, dtype, kva_expr_const(b->exprs, extent));
}

kva_kbuf *kva_k_shared(kva_kb *b, const char *name, kva_dtype dtype, int64_t extent) {
  return add_buffer(b, KVA_K_SHARED, name, dtype, kva_expr_const(b->exprs, extent));
}

bool kva_kb_is_ordered(const kva_kbuf *buf) {
  return buf->space != KVA_K_PARAM || buf->written;
}

/* What is local lies in the nearest cache. */
static int64_t prefetch_of(const kva_kb *b, const kva_kbuf *buf) {
  return buf->space == KVA_K_PARAM ? b->prefetch_bytes : 0;
}

/* ---- pure instructions ------------------------------------------------------------------------------------------- */

static kva_kregion *operand_region(const kva_kb *b, const kva_kinstr *i) {
  kva_kregion *r = i->index ? kva_kb_expr_region(b, i->index) : b->kernel->body;
  for (uint32_t a = 0; a < i->n_args; a++) {
    KVA_ASSERT(i->args[a]->region); /* result of a loop that has not ended */
    r = kva_kb_deeper(r, i->args[a]->region);
  }
  KVA_ASSERT(kva_k_encloses(r, b->region)); /* operand out of scope */
  return r;
}

static pure_key make_key(const kva_kinstr *i, const kva_kregion *r) {
  pure_key key;
  memset(&key, 0, sizeof key);
  key.op = (uint32_t)i->op;
  key.dtype = (uint32_t)i->dtype;
  key.n_args = i->n_args;
  for (uint32_t a = 0; a < i->n_args; a++) key.args[a] = i->args[a]->id;
  key.imm = i->imm.i;
  key.index = i->index;
  key.buf = i->buf;
  key.region = r;
  return key;
}

static kva_kinstr *copy_instr(kva_kb *b, const kva_kinstr *proto) {
  kva_kinstr *i = kva_k_instr_create(b->kernel, proto->op, proto->dtype);
  uint32_t id = i->id;
  *i = *proto;
  i->id = id;
  return i;
}

kva_kval kva_kb_pure(kva_kb *b, const kva_kinstr *proto) {
  kva_kregion *lowest = operand_region(b, proto);
  kva_khoist hoist = {.exprs = b->exprs, .load = proto->op == KVA_K_LOAD ? proto : NULL};
  kva_kregion *place = kva_kb_hoist(&hoist, b->region, lowest);
  for (kva_kregion *r = place;; r = r->parent) {
    pure_key key = make_key(proto, r);
    kva_kinstr *known = kva_map_get(b->memo->pure, &key, sizeof key);
    if (known) return known;
    if (r == lowest) break;
  }
  kva_kinstr *i = copy_instr(b, proto);
  kva_kb_link(b, place, i);
  pure_key key = make_key(proto, place);
  kva_map_set(b->memo->pure, &key, sizeof key, i);
  return i;
}

static kva_kinstr *append(kva_kb *b, const kva_kinstr *proto) {
  operand_region(b, proto);
  kva_kinstr *i = copy_instr(b, proto);
  kva_kb_link(b, b->region, i);
  return i;
}

/* ---- loads, stores, guards --------------------------------------------------------------------------------------- */

bool kva_kb_is_const(const kva_kinstr *v) {
  return v->op == KVA_K_CONST;
}

static bool is_own(const kva_kb *b, const kva_kbuf *buf) {
  return buf->id < b->kernel->bufs.len && b->kernel->bufs.data[buf->id] == buf;
}

static bool never(kva_kval pred) {
  return pred && kva_kb_is_const(pred) && !pred->imm.i;
}

kva_kval kva_k_load(kva_kb *b, kva_kbuf *buf, const kva_expr *index) {
  KVA_ASSERT(is_own(b, buf) && index);
  kva_dtype type = kva_k_compute_type(buf->dtype);
  buf->read = true;
  if (never(b->pred)) return kva_k_const(b, type, 0);
  kva_kinstr load = {.op = KVA_K_LOAD, .dtype = type, .index = index, .buf = buf, .imm.i = prefetch_of(b, buf)};
  if (b->pred) load.args[load.n_args++] = b->pred;
  return kva_kb_is_ordered(buf) ? append(b, &load) : kva_kb_pure(b, &load);
}

/* v, or what v rounds to `storage`: a store to that type rounds it. */
static kva_kval unrounded(kva_kval v, kva_dtype storage) {
  v = kva_kb_resolve(v);
  return v->op == KVA_K_NARROW && v->imm.i == storage ? v->args[0] : v;
}

void kva_k_store(kva_kb *b, kva_kbuf *buf, const kva_expr *index, kva_kval v) {
  KVA_ASSERT(is_own(b, buf) && index && v->dtype != KVA_DTYPE_NONE);
  buf->written = true;
  if (never(b->pred)) return;
  kva_kinstr store = {.op = KVA_K_STORE, .n_args = 1, .index = index, .buf = buf, .imm.i = prefetch_of(b, buf)};
  store.args[0] = kva_k_convert(b, unrounded(v, buf->dtype), kva_k_compute_type(buf->dtype));
  if (b->pred) store.args[store.n_args++] = b->pred;
  append(b, &store);
}

kva_kval kva_k_guard_begin(kva_kb *b, kva_kval cond) {
  KVA_ASSERT(!cond || cond->dtype == KVA_BOOL);
  kva_kval previous = b->pred;
  b->pred = kva_k_and(b, previous, cond);
  if (b->pred && kva_kb_is_const(b->pred) && b->pred->imm.i) b->pred = NULL;
  return previous;
}

void kva_k_guard_end(kva_kb *b, kva_kval previous) {
  b->pred = previous;
}

/* ---- index expressions as values and back ------------------------------------------------------------------------ */

kva_kval kva_k_index(kva_kb *b, const kva_expr *e) {
  int64_t constant;
  if (kva_expr_is_const(e, &constant)) return kva_k_const_i(b, KVA_I64, constant);
  kva_kval v = kva_kb_get(b->memo->symbol_values, e);
  if (v) return v;
  kva_kinstr index = {.op = KVA_K_INDEX, .dtype = KVA_I64, .index = e};
  return kva_kb_pure(b, &index);
}

static const kva_expr *add_value_symbol(kva_kb *b, kva_kval v, const kva_expr *symbol) {
  KVA_ASSERT(v->dtype == KVA_I64 && v->region && !kva_kb_get(b->memo->symbol_values, symbol));
  KVA_PUSH(b->arena, &b->kernel->value_symbols, symbol);
  KVA_PUSH(b->arena, &b->kernel->values, v);
  kva_kb_set(b->memo->value_symbols, v, symbol);
  kva_kb_set(b->memo->symbol_values, symbol, v);
  return symbol;
}

const kva_expr *kva_k_name(kva_kb *b, const kva_expr *e, const kva_expr *extent) {
  if (kva_expr_is_const(e, NULL)) return e;
  kva_kinstr index = {.op = KVA_K_INDEX, .dtype = KVA_I64, .index = e};
  return add_value_symbol(b, append(b, &index), kva_expr_fresh(b->exprs, "v", 0, extent));
}

const kva_expr *kva_k_symbol(kva_kb *b, kva_kval value) {
  kva_kval v = kva_k_convert(b, value, KVA_I64);
  if (v->op == KVA_K_CONST) return kva_expr_const(b->exprs, v->imm.i);
  const kva_expr *known = kva_kb_get(b->memo->value_symbols, v);
  if (known) return known;
  if (v->op == KVA_K_INDEX) return v->index;
  return add_value_symbol(b, v, kva_expr_fresh(b->exprs, "v", INT64_MIN, NULL));
}

static kva_kval compare(kva_kb *b, kva_kop op, const kva_expr *x, const kva_expr *y) {
  return kva_k2(b, op, kva_k_index(b, x), kva_k_index(b, y));
}

kva_kval kva_k_index_lt(kva_kb *b, const kva_expr *x, const kva_expr *y) {
  if (kva_expr_provably_less(b->exprs, x, y)) return kva_k_const_i(b, KVA_BOOL, 1);
  if (kva_expr_provably_le(b->exprs, y, x)) return kva_k_const_i(b, KVA_BOOL, 0);
  return compare(b, KVA_K_lt, x, y);
}

kva_kval kva_k_index_le(kva_kb *b, const kva_expr *x, const kva_expr *y) {
  if (kva_expr_provably_le(b->exprs, x, y)) return kva_k_const_i(b, KVA_BOOL, 1);
  if (kva_expr_provably_less(b->exprs, y, x)) return kva_k_const_i(b, KVA_BOOL, 0);
  return compare(b, KVA_K_le, x, y);
}

kva_kval kva_k_index_eq(kva_kb *b, const kva_expr *x, const kva_expr *y) {
  if (x == y) return kva_k_const_i(b, KVA_BOOL, 1);
  bool differ = kva_expr_provably_less(b->exprs, x, y) || kva_expr_provably_less(b->exprs, y, x);
  return differ ? kva_k_const_i(b, KVA_BOOL, 0) : compare(b, KVA_K_eq, x, y);
}

kva_kval kva_k_and(kva_kb *b, kva_kval x, kva_kval y) {
  if (!x) return kva_kb_resolve(y);
  return y ? kva_k2(b, KVA_K_and, x, y) : kva_kb_resolve(x);
}

/* ---- branches ---------------------------------------------------------------------------------------------------- */

kva_kinstr *kva_k_if_begin(kva_kb *b, kva_kval cond) {
  kva_kinstr branch = {.op = KVA_K_IF, .n_args = 1};
  branch.args[0] = kva_kb_resolve(cond);
  KVA_ASSERT(branch.args[0]->dtype == KVA_BOOL);
  branch.then = kva_k_region_create(b->kernel, NULL);
  branch.orelse = kva_k_region_create(b->kernel, NULL);
  kva_kinstr *i = append(b, &branch);
  i->then->owner = i->orelse->owner = i;
  b->region = i->then;
  return i;
}

void kva_k_if_else(kva_kb *b, kva_kinstr *branch) {
  KVA_ASSERT(b->region == branch->then);
  b->region = branch->orelse;
}

void kva_k_if_end(kva_kb *b, kva_kinstr *branch) {
  KVA_ASSERT(b->region == branch->then || b->region == branch->orelse);
  b->region = branch->region;
}

void kva_k_barrier(kva_kb *b) {
  kva_kinstr barrier = {.op = KVA_K_BARRIER};
  append(b, &barrier);
}
