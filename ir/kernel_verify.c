/* The kernel verifier. Instructions are numbered in text order; a value is visible to an instruction if it comes before
 * it, in a region that encloses it. */
#include "ir/dialect.h"

typedef struct verifier {
  const kva_kernel *k;
  kva_diag *diag;
  kva_arena *scratch;
  uint32_t *position; /* by id, from 1; 0: not in the kernel */
  uint32_t *end;      /* LOOP: position after its body */
  kva_kinstr **by_id;
  uint32_t next_position;
  kva_map *loops;  /* loop variable -> loop */
  kva_map *values; /* value symbol -> instruction */
  kva_status status;
} verifier;

static void KVA_PRINTF(3, 4) report(verifier *v, const kva_kinstr *i, const char *fmt, ...) {
  char text[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  const char *name = v->k->name;
  if (i) v->status = kva_error(v->diag, NULL, "kernel %s: %s %%%u: %s", name, kva_kop_name(i->op), i->id, text);
  if (!i) v->status = kva_error(v->diag, NULL, "kernel %s: %s", name, text);
}

/* ---- structure, on which all other checks rely ------------------------------------------------------------------- */

static void check_links(verifier *v, const kva_kregion *r);

static void check_child(verifier *v, const kva_kinstr *i, const kva_kregion *r) {
  if (!r || r->owner != i || r->parent != i->region || r->depth != i->region->depth + 1) {
    report(v, i, "its region is missing or linked to another parent");
    return;
  }
  check_links(v, r);
}

static void check_identity(verifier *v, kva_kinstr *i) {
  if (i->id >= v->k->next_id) {
    report(v, i, "id is not below the kernel's next_id %u", v->k->next_id);
    return;
  }
  if (v->by_id[i->id]) report(v, i, "id is used twice");
  v->by_id[i->id] = i;
  v->position[i->id] = ++v->next_position;
}

static void check_links(verifier *v, const kva_kregion *r) {
  const kva_kinstr *previous = NULL;
  for (kva_kinstr *i = r->first; i; previous = i, i = i->next) {
    if (i->region != r || i->prev != previous) report(v, i, "list links are broken");
    check_identity(v, i);
    if (v->status != KVA_OK) return;
    if (i->op == KVA_K_LOOP) {
      if (!i->loop || i->loop->instr != i) report(v, i, "has no loop of its own");
      if (v->status == KVA_OK) check_child(v, i, i->loop->body);
      v->end[i->id] = ++v->next_position;
    }
    if (i->op == KVA_K_IF) {
      check_child(v, i, i->then);
      check_child(v, i, i->orelse);
    }
    if (v->status != KVA_OK) return;
  }
  if (r->last != previous) report(v, r->owner, "region's last instruction is not the last of its list");
}

/* ---- visibility -------------------------------------------------------------------------------------------------- */

static bool is_linked(const verifier *v, const kva_kinstr *i) {
  return i && i->id < v->k->next_id && v->by_id[i->id] == i;
}

static bool is_visible(const verifier *v, const kva_kinstr *value, const kva_kinstr *user) {
  return is_linked(v, value) && value->dtype != KVA_DTYPE_NONE && kva_k_encloses(value->region, user->region) &&
         v->position[value->id] < v->position[user->id];
}

typedef struct index_check {
  verifier *v;
  const kva_kinstr *user;
} index_check;

static void check_symbol(void *user, const kva_expr *symbol) {
  index_check *c = user;
  verifier *v = c->v;
  const kva_kloop *l = kva_map_get(v->loops, &symbol, sizeof symbol);
  const kva_kinstr *value = kva_map_get(v->values, &symbol, sizeof symbol);
  bool ok = l       ? kva_k_encloses(l->body, c->user->region)
            : value ? is_visible(v, value, c->user)
                    : kva_expr_symbol(v->k->exprs, symbol->name) == symbol;
  if (!ok) report(v, c->user, "index uses symbol '%s' where it has no value", symbol->name);
}

static void check_index(verifier *v, const kva_kinstr *i, const kva_expr *e) {
  index_check c = {v, i};
  if (!e) {
    report(v, i, "has no index");
    return;
  }
  if (e->kind == KVA_EXPR_OVERFLOW) report(v, i, "index overflows 64 bits");
  kva_expr_each_symbol(e, check_symbol, &c);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static bool expect_args(verifier *v, const kva_kinstr *i, uint32_t min, uint32_t max) {
  if (i->n_args < min || i->n_args > max) {
    report(v, i, "has %u operands, expected %u to %u", i->n_args, min, max);
    return false;
  }
  for (uint32_t a = 0; a < i->n_args; a++) {
    if (is_visible(v, i->args[a], i)) continue;
    report(v, i, "operand %u is not visible here", a);
    return false;
  }
  return true;
}

static void expect_type(verifier *v, const kva_kinstr *i, const char *what, kva_dtype found, kva_dtype expected) {
  if (found == expected) return;
  report(v, i, "%s has type %s, expected %s", what, kva_dtype_name(found), kva_dtype_name(expected));
}

static void check_arith(verifier *v, const kva_kinstr *i) {
  uint32_t n = kva_kop_arity(i->op), first = i->op == KVA_K_select;
  if (!expect_args(v, i, n, n)) return;
  kva_dtype t = i->args[first]->dtype;
  if (first) expect_type(v, i, "condition", i->args[0]->dtype, KVA_BOOL);
  for (uint32_t a = first; a < n; a++) expect_type(v, i, "operand", i->args[a]->dtype, t);
  if (kva_k_compute_type(t) != t) report(v, i, "computes in %s, which is only a storage type", kva_dtype_name(t));
  if (i->op == KVA_K_dot4) expect_type(v, i, "operand", t, KVA_I32);
  if (i->op >= KVA_K_dot2 && i->op <= KVA_K_scalef) expect_type(v, i, "operand", t, KVA_F32);
  expect_type(v, i, "result", i->dtype, kva_kop_result_type(i->op, t));
}

static void check_convert(verifier *v, const kva_kinstr *i) {
  if (!expect_args(v, i, 1, 1)) return;
  if (kva_k_compute_type(i->dtype) == KVA_DTYPE_NONE) report(v, i, "cannot make %s", kva_dtype_name(i->dtype));
  int from = kva_dtype_bits(i->args[0]->dtype), to = kva_dtype_bits(i->dtype);
  if (i->op == KVA_K_BITCAST && from != to) report(v, i, "from %d bits to %d", from, to);
}

static void check_narrow(verifier *v, const kva_kinstr *i) {
  if (!expect_args(v, i, 1, 1)) return;
  kva_dtype storage = (kva_dtype)i->imm.i;
  if (!kva_dtype_is_float(storage)) report(v, i, "cannot round to %s", kva_dtype_name(storage));
  expect_type(v, i, "operand", i->args[0]->dtype, kva_k_compute_type(storage));
  expect_type(v, i, "result", i->dtype, kva_k_compute_type(storage));
}

static void check_const(verifier *v, const kva_kinstr *i) {
  expect_args(v, i, 0, 0);
  if (kva_k_compute_type(i->dtype) == KVA_DTYPE_NONE) report(v, i, "has no type");
}

static bool has_buffer(verifier *v, const kva_kinstr *i) {
  if (i->buf && i->buf->id < v->k->bufs.len && v->k->bufs.data[i->buf->id] == i->buf) return true;
  report(v, i, "its buffer is not one of this kernel");
  return false;
}

static void check_load(verifier *v, const kva_kinstr *i) {
  check_index(v, i, i->index);
  if (!has_buffer(v, i) || !expect_args(v, i, 0, 1)) return;
  if (!i->buf->read) report(v, i, "buffer '%s' is not marked as read", i->buf->name);
  if (i->n_args) expect_type(v, i, "predicate", i->args[0]->dtype, KVA_BOOL);
  expect_type(v, i, "result", i->dtype, kva_k_compute_type(i->buf->dtype));
}

static void check_store(verifier *v, const kva_kinstr *i) {
  check_index(v, i, i->index);
  if (!has_buffer(v, i) || !expect_args(v, i, 1, 2)) return;
  if (!i->buf->written) report(v, i, "buffer '%s' is not marked as written", i->buf->name);
  if (i->n_args > 1) expect_type(v, i, "predicate", i->args[1]->dtype, KVA_BOOL);
  expect_type(v, i, "stored value", i->args[0]->dtype, kva_k_compute_type(i->buf->dtype));
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

static bool yields(const verifier *v, const kva_kloop *l, const kva_kinstr *value) {
  return is_linked(v, value) && kva_k_encloses(value->region, l->body) && v->position[value->id] < v->end[l->instr->id];
}

static void check_carry(verifier *v, const kva_kloop *l, uint32_t number) {
  const kva_kcarry *c = &l->carries.data[number];
  const kva_kinstr *i = l->instr;
  if (!is_visible(v, c->init, i)) report(v, i, "start of carry %u is not visible here", number);
  if (!yields(v, l, c->yield))
    report(v, i, "carry %u has no next value that is visible at the end of the body", number);
  if (v->status != KVA_OK) return;
  expect_type(v, i, "start of a carry", c->init->dtype, c->dtype);
  expect_type(v, i, "next value of a carry", c->yield->dtype, c->dtype);
  bool in_order = l->kind == KVA_K_SERIAL || l->kind == KVA_K_UNROLL;
  if (c->combine == KVA_COMBINE_NONE && !in_order) report(v, i, "a sequential carry needs a serial or unroll loop");
}

/* ---- intrinsics -------------------------------------------------------------------------------------------------- */

static kva_kspace space_of(char kind) {
  return kind == 'p' ? KVA_K_PARAM : strchr("lLB", kind) ? KVA_K_LOCAL : KVA_K_SHARED;
}

static void check_place(verifier *v, const kva_kinstr *i, char kind, const kva_kplace *place) {
  const kva_kbuf *buf = place->buf;
  if (!buf || buf->id >= v->k->bufs.len || v->k->bufs.data[buf->id] != buf) {
    report(v, i, "a place names no buffer of this kernel");
    return;
  }
  check_index(v, i, place->index);
  if (buf->space != space_of(kind)) report(v, i, "buffer '%s' is in another memory than the operand", buf->name);
  if (kind == 'm' && buf->dtype != KVA_U64) report(v, i, "an mbarrier in '%s', which is not uint64", buf->name);
  bool reads = !strchr("SL", kind), writes = strchr("SLBm", kind);
  if (reads && !buf->read) report(v, i, "buffer '%s' is not marked as read", buf->name);
  if (writes && !buf->written) report(v, i, "buffer '%s' is not marked as written", buf->name);
}

static void check_intrinsic(verifier *v, const kva_kinstr *i) {
  const kva_kintrinsic *m = i->intrinsic;
  const kva_intrinsic_info *info = m ? kva_intrinsic_get(m->op) : NULL;
  if (!info) {
    report(v, i, "names no instruction");
    return;
  }
  uint32_t place = 0, index = 0, values = kva_intrinsic_count(info, "v");
  for (const char *kind = info->operands; *kind && v->status == KVA_OK; kind++) {
    if (kva_is_place(*kind)) check_place(v, i, *kind, &m->places[place++]);
    if (*kind == 'e' || *kind == '+') check_index(v, i, m->indices[index++]);
  }
  for (; index < KVA_K_MAX_INDICES && m->indices[index]; index++) check_index(v, i, m->indices[index]);
  if (expect_args(v, i, values, values) && values) expect_type(v, i, "value", i->args[0]->dtype, KVA_F32);
  expect_type(v, i, "result", i->dtype, info->type);
  const char *wrong = v->status == KVA_OK ? kva_intrinsic_dialect(m->op)->check(v->k, i) : NULL;
  if (wrong) report(v, i, "%s: %s", info->name, wrong);
}

static bool is_power_of_two(uint32_t n) {
  return n && !(n & (n - 1));
}

/* Number of threads that run the code around i together. */
static uint32_t subgroup_around(const verifier *v, const kva_kinstr *i) {
  for (const kva_kinstr *o = i->region->owner; o; o = o->region->owner) {
    if (o->op == KVA_K_LOOP && o->loop->kind == KVA_K_THREAD) return o->loop->subgroup > 1 ? o->loop->subgroup : 1;
  }
  return v->k->threads;
}

/* The loop stands directly in the body of a top-level grid, so that every block runs it. */
static bool is_of_every_item(const verifier *v, const kva_kinstr *i) {
  const kva_kinstr *grid = i->region->owner;
  int64_t items;
  if (!grid || grid->op != KVA_K_LOOP || grid->loop->kind != KVA_K_GRID || grid->region != v->k->body) return false;
  return !kva_expr_is_const(grid->loop->extent, &items) || items % i->loop->blocks == 0;
}

/* Blocks can exchange only floats. */
static bool is_shared_row(const verifier *v, const kva_kinstr *i) {
  const kva_kloop *l = i->loop;
  bool may = is_power_of_two(l->blocks) && l->blocks <= KVA_K_MAX_BLOCKS && is_of_every_item(v, i);
  for (uint32_t c = 0; c < l->carries.len; c++)
    may &= l->carries.data[c].combine != KVA_COMBINE_NONE && l->carries.data[c].dtype == KVA_F32;
  return may;
}

static void check_threads(verifier *v, const kva_kinstr *i) {
  const kva_kloop *l = i->loop;
  uint32_t around = subgroup_around(v, i), subgroup = l->subgroup > 1 ? l->subgroup : 1;
  int64_t most;
  if (v->k->threads % 32 || v->k->threads < 32 || v->k->threads > 1024) {
    report(v, i, "thread loop in a kernel of %u threads; a multiple of 32 up to 1024 is needed", v->k->threads);
  } else if (!is_power_of_two(v->k->threads) && l->carries.len) {
    report(v, i, "%u threads combine values; a power of two is needed", v->k->threads);
  } else if (!is_power_of_two(subgroup) || subgroup >= around) {
    report(v, i, "subgroups of %u threads do not divide the %u around the loop", subgroup, around);
  }
  if (l->strict_order) report(v, i, "a thread loop has no order");
  if (subgroup > 1 && (l->carries.len || l->width > 1))
    report(v, i, "subgroups can neither carry values nor take lanes");
  if (l->stage && subgroup == 1) report(v, i, "single threads have nothing to stage");
  if (l->blocks && !is_shared_row(v, i))
    report(v, i, "%u blocks share a row: a power of two up to %d may, by items of the grid, to combine floats",
           l->blocks, KVA_K_MAX_BLOCKS);
  if (l->peel && (l->width < 2 || !kva_expr_upper_bound(l->peel, &most) || most >= KVA_K_PEEL))
    report(v, i, "a peel needs lanes, and must be known to be shorter than %d", KVA_K_PEEL);
  if (l->width > 16 || (l->width && !is_power_of_two(l->width)))
    report(v, i, "width %u is no power of two up to 16", l->width);
}

static void check_loop(verifier *v, const kva_kinstr *i) {
  const kva_kloop *l = i->loop;
  bool needs_const = l->kind == KVA_K_UNROLL;
  check_index(v, i, l->extent);
  if (l->peel) check_index(v, i, l->peel);
  if (kva_map_get(v->loops, &l->var, sizeof l->var) != l) report(v, i, "is not in the kernel's list of loops");
  if (l->extent && needs_const && !kva_expr_is_const(l->extent, NULL)) {
    report(v, i, "%s loop needs a constant extent", kva_kloop_kind_name(l->kind));
  }
  if (l->kind == KVA_K_THREAD) check_threads(v, i);
  if (l->kind == KVA_K_GRID && l->carries.len)
    report(v, i, "%s loop cannot carry values", kva_kloop_kind_name(l->kind));
  const kva_kinstr *outer = i->region->owner;
  if (l->kind == KVA_K_GRID && outer && (outer->op != KVA_K_LOOP || outer->loop->kind != KVA_K_GRID)) {
    report(v, i, "grid loop inside something that is not a grid loop");
  }
  for (uint32_t c = 0; c < l->carries.len; c++) check_carry(v, l, c);
}

static void check_loop_value(verifier *v, const kva_kinstr *i) {
  const kva_kloop *l = i->loop;
  if (!l || !is_linked(v, l->instr) || i->carry >= l->carries.len) {
    report(v, i, "names no carry of a loop in this kernel");
    return;
  }
  bool inside = kva_k_encloses(l->body, i->region);
  bool after = kva_k_encloses(l->instr->region, i->region) && v->position[i->id] > v->end[l->instr->id];
  if (i->op == KVA_K_CARRY && (!inside || l->carries.data[i->carry].combine != KVA_COMBINE_NONE)) {
    report(v, i, "is not inside its loop, or the carry is not sequential");
  }
  if (i->op == KVA_K_REDUCE && (inside || !after)) report(v, i, "does not stand after its loop");
  expect_type(v, i, "result", i->dtype, l->carries.data[i->carry].dtype);
}

static void check_instr(void *user, kva_kinstr *i) {
  verifier *v = user;
  switch (i->op) {
  case KVA_K_CONST: check_const(v, i); return;
  case KVA_K_INDEX:
    check_index(v, i, i->index);
    expect_type(v, i, "result", i->dtype, KVA_I64);
    return;
  case KVA_K_CONVERT:
  case KVA_K_BITCAST: check_convert(v, i); return;
  case KVA_K_NARROW: check_narrow(v, i); return;
  case KVA_K_LOAD: check_load(v, i); return;
  case KVA_K_STORE: check_store(v, i); return;
  case KVA_K_LOOP: check_loop(v, i); return;
  case KVA_K_REDUCE:
  case KVA_K_CARRY: check_loop_value(v, i); return;
  case KVA_K_IF:
    if (expect_args(v, i, 1, 1)) expect_type(v, i, "condition", i->args[0]->dtype, KVA_BOOL);
    return;
  case KVA_K_BARRIER: return;
  case KVA_K_INTRINSIC: check_intrinsic(v, i); return;
  default: check_arith(v, i);
  }
}

/* ---- the kernel's lists ------------------------------------------------------------------------------------------ */

static double bytes_of(const kva_kbuf *buf) {
  int64_t n = 0;
  kva_expr_is_const(buf->extent, &n);
  return (double)n * kva_dtype_bits(buf->dtype) / 8;
}

static void check_over(verifier *v, const kva_kbuf *buf) {
  const kva_kbuf *over = buf->over;
  bool ok = buf->space == KVA_K_SHARED && over->space == KVA_K_SHARED && !over->over && over->id < buf->id;
  if (!ok) report(v, NULL, "buffer '%s' lies over one that is not an earlier shared one", buf->name);
  if (ok && bytes_of(buf) > bytes_of(over)) report(v, NULL, "buffer '%s' is larger than '%s'", buf->name, over->name);
}

static bool is_swizzle(int32_t n) {
  return n == 0 || n == 32 || n == 64 || n == 128;
}

static void check_maps(verifier *v) {
  for (uint32_t i = 0; i < v->k->maps.len; i++) {
    const kva_ktensor_map *m = &v->k->maps.data[i];
    bool ok = m->buf && m->buf->space == KVA_K_PARAM && m->rank >= 1 && m->rank <= KVA_K_TENSOR_MAP_RANK &&
              is_swizzle(m->swizzle);
    if (!ok) report(v, NULL, "tensor map %u is not of a parameter, or its rank or swizzle do not exist", i);
  }
}

static void check_buffers(verifier *v) {
  bool params_over = false;
  for (uint32_t b = 0; b < v->k->bufs.len; b++) {
    const kva_kbuf *buf = v->k->bufs.data[b];
    if (buf->id != b) report(v, NULL, "buffer '%s' has id %u, expected %u", buf->name, buf->id, b);
    if (buf->space == KVA_K_PARAM && params_over) report(v, NULL, "parameter '%s' after a local buffer", buf->name);
    if (kva_k_compute_type(buf->dtype) == KVA_DTYPE_NONE) {
      report(v, NULL, "buffer '%s' has type %s", buf->name, kva_dtype_name(buf->dtype));
    }
    if (buf->space == KVA_K_PARAM) continue;
    params_over = true;
    if (!kva_expr_is_const(buf->extent, NULL)) report(v, NULL, "local buffer '%s' needs a constant extent", buf->name);
    if (buf->over) check_over(v, buf);
  }
}

static void bind_symbols(verifier *v) {
  for (uint32_t i = 0; i < v->k->loops.len; i++) {
    kva_kloop *l = v->k->loops.data[i];
    if (!is_linked(v, l->instr)) report(v, NULL, "the list of loops names '%s', which is not in it", l->var->name);
    if (kva_map_get(v->loops, &l->var, sizeof l->var)) report(v, l->instr, "shares its variable with another loop");
    kva_map_set(v->loops, &l->var, sizeof l->var, l);
  }
  for (uint32_t i = 0; i < v->k->values.len; i++) {
    kva_kinstr *value = v->k->values.data[i];
    if (!is_linked(v, value)) report(v, NULL, "a symbol stands for a value that is not in the kernel");
    kva_map_set(v->values, &v->k->value_symbols.data[i], sizeof(const kva_expr *), value);
  }
}

kva_status kva_kernel_verify(const kva_kernel *k, kva_diag *diag) {
  verifier v = {.k = k, .diag = diag, .scratch = kva_arena_create()};
  v.position = KVA_NEW_ARRAY(v.scratch, uint32_t, k->next_id + 1);
  v.end = KVA_NEW_ARRAY(v.scratch, uint32_t, k->next_id + 1);
  v.by_id = KVA_NEW_ARRAY(v.scratch, kva_kinstr *, k->next_id + 1);
  v.loops = kva_map_create(v.scratch);
  v.values = kva_map_create(v.scratch);
  check_links(&v, k->body);
  if (v.status == KVA_OK) check_buffers(&v);
  if (v.status == KVA_OK) check_maps(&v);
  if (v.status == KVA_OK) bind_symbols(&v);
  if (v.status == KVA_OK) kva_k_each_instr(k, check_instr, &v);
  kva_arena_destroy(v.scratch);
  return v.status;
}
