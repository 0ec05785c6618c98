/* Loads, stores, atomics, asynchronous copies, matrix fragments. */
#include "runtime/ptxsim/decode.h"

static ptx_space take_space(ptx_decoder *d) {
  static const struct {
    const char *name;
    ptx_space space;
  } spaces[] = {
      {"global", PTX_GLOBAL}, {"shared", PTX_SHARED}, {"shared::cta", PTX_SHARED}, {"shared::cluster", PTX_CLUSTER},
      {"local", PTX_LOCAL},   {"const", PTX_CONST},   {"param", PTX_PARAM},        {"param::entry", PTX_PARAM}};
  for (size_t k = 0; k < sizeof spaces / sizeof *spaces; k++)
    if (kva_ptx_take(d, spaces[k].name)) return spaces[k].space;
  return PTX_GENERIC;
}

/* Claims orders and scopes; true if the access synchronises with others (volatile, relaxed, acquire, release). */
static bool take_order(ptx_decoder *d) {
  static const char *const scopes[] = {"cta", "gpu", "sys", "cluster", "weak", NULL};
  static const char *const orders[] = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"};
  bool strong = false;
  for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) strong |= kva_ptx_take(d, orders[k]);
  kva_ptx_take_all(d, scopes);
  return strong;
}
/* Claims cache hints, which have no effect here. */
static void take_cache(ptx_decoder *d) {
  static const char *const hints[] = {"nc",
                                      "ca",
                                      "cg",
                                      "cs",
                                      "lu",
                                      "cv",
                                      "wb",
                                      "wt",
                                      "L1::evict_normal",
                                      "L1::evict_unchanged",
                                      "L1::evict_first",
                                      "L1::evict_last",
                                      "L1::no_allocate",
                                      "L2::evict_normal",
                                      "L2::evict_first",
                                      "L2::evict_last",
                                      "L2::64B",
                                      "L2::128B",
                                      "L2::256B",
                                      NULL};
  kva_ptx_take_all(d, hints);
}

static uint8_t class_of(ptx_space space) {
  switch (space) {
  case PTX_GLOBAL:
  case PTX_GENERIC: return KVA_PTX_CLASS_GLOBAL;
  case PTX_SHARED:
  case PTX_CLUSTER: return KVA_PTX_CLASS_SHARED;
  default: return KVA_PTX_CLASS_OTHER_MEMORY;
  }
}

/* ---- ld, st ------------------------------------------------------------------------------------------------------ */

/* The data operand: one register or, for .v2 and .v4, a list. */
static kva_status data_operand(ptx_decoder *d, const ptx_operand *o, ptx_type type, bool load) {
  ptx_ins *i = d->i;
  i->list = KVA_NEW_ARRAY(d->b->arena, uint32_t, i->n);
  if (i->n > 1 && (o->kind != PTX_OPERAND_LIST || o->n_items != i->n))
    return kva_ptx_operand_error(d, o, "as many registers in braces as the vector has elements");
  bool list = o->kind == PTX_OPERAND_LIST && o->n_items == i->n;
  for (uint32_t k = 0; k < i->n; k++) {
    const ptx_operand *item = list ? &o->items[k] : o;
    KVA_TRY(load ? kva_ptx_dest_of(d, item, type, true, &i->list[k])
                 : kva_ptx_source_of(d, item, type, true, &i->list[k]));
    uint8_t width =
        (uint8_t)((item->kind == PTX_OPERAND_REG ? kva_ptx_type_bits(item->type) : kva_ptx_type_bits(type)) / 8);
    if (k && i->width != width) return kva_ptx_operand_error(d, item, "registers of one width");
    i->width = width;
  }
  return KVA_OK;
}

static kva_status decode_access(ptx_decoder *d, bool load) {
  ptx_ins *i = d->i;
  i->flag = take_order(d);
  i->space = (uint8_t)take_space(d);
  take_cache(d);
  bool hint = kva_ptx_take(d, "L2::cache_hint");
  i->n = kva_ptx_take(d, "v4") ? 4 : kva_ptx_take(d, "v2") ? 2 : 1;
  ptx_type type = kva_ptx_take_type(d);
  if (type == PTX_NOTYPE || type == PTX_PRED) return kva_ptx_unsupported(d);
  i->type = (uint8_t)type;
  i->bytes = (uint8_t)(kva_ptx_type_bits(type) / 8);
  i->class = class_of((ptx_space)i->space);
  d->b->kernel->polls |= load && i->flag && i->space == PTX_GLOBAL;
  i->exec = load ? kva_ptx_exec_load : kva_ptx_exec_store;
  uint32_t policy;
  KVA_TRY(kva_ptx_finish(d, hint ? 3 : 2));
  if (hint) KVA_TRY(kva_ptx_source(d, 2, PTX_B64, &policy));
  if (i->bytes * i->n > 16) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_address(d, load ? 1 : 0, &i->src[0]));
  return data_operand(d, &d->s->operands[load ? 0 : 1], type, load);
}
static kva_status decode_ld(ptx_decoder *d) {
  return decode_access(d, true);
}
static kva_status decode_st(ptx_decoder *d) {
  return decode_access(d, false);
}

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

static kva_status decode_atomic(ptx_decoder *d, bool result) {
  static const char *const names[] = {"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"};
  static const ptx_atomic ops[] = {PTX_ATOM_ADD, PTX_ATOM_MIN,  PTX_ATOM_MAX, PTX_ATOM_AND, PTX_ATOM_OR,
                                   PTX_ATOM_XOR, PTX_ATOM_EXCH, PTX_ATOM_CAS, PTX_ATOM_INC, PTX_ATOM_DEC};
  ptx_ins *i = d->i;
  take_order(d);
  i->space = (uint8_t)take_space(d);
  take_cache(d);
  kva_ptx_take(d, "noftz");
  size_t op = 0;
  while (op < 10 && !kva_ptx_take(d, names[op])) op++;
  ptx_type type = kva_ptx_take_type(d);
  if (op == 10 || !kva_ptx_atomic_supported(ops[op], type)) return kva_ptx_unsupported(d);
  i->sub = (uint8_t)ops[op];
  i->type = (uint8_t)type;
  i->bytes = (uint8_t)(kva_ptx_type_bits(type) / 8);
  i->n = 1;
  i->class = KVA_PTX_CLASS_ATOMIC;
  i->exec = kva_ptx_exec_atom;
  uint32_t first = result ? 1 : 0;
  KVA_TRY(kva_ptx_finish(d, first + (ops[op] == PTX_ATOM_CAS ? 3 : 2)));
  i->dst = PTX_NONE;
  if (result) KVA_TRY(kva_ptx_dest(d, 0, type, &i->dst));
  KVA_TRY(kva_ptx_address(d, first, &i->src[0]));
  KVA_TRY(kva_ptx_source(d, first + 1, type, &i->src[1]));
  return ops[op] == PTX_ATOM_CAS ? kva_ptx_source(d, first + 2, type, &i->src[2]) : KVA_OK;
}
static kva_status decode_atom(ptx_decoder *d) {
  return decode_atomic(d, true);
}
static kva_status decode_red(ptx_decoder *d) {
  return decode_atomic(d, false);
}

/* ---- cp.async ---------------------------------------------------------------------------------------------------- */

static kva_status decode_copy(ptx_decoder *d) {
  ptx_ins *i = d->i;
  bool ca = kva_ptx_take(d, "ca"), cg = kva_ptx_take(d, "cg");
  bool shared = kva_ptx_take(d, "shared") || kva_ptx_take(d, "shared::cta");
  if (ca == cg || !shared || !kva_ptx_take(d, "global")) return kva_ptx_unsupported(d);
  take_cache(d);
  uint32_t n = d->s->n_operands;
  KVA_TRY(kva_ptx_finish(d, n == 4 ? 4 : 3));
  int64_t size, dst_offset;
  KVA_TRY(kva_ptx_immediate(d, 2, &size));
  if (size != 16 && (cg || (size != 4 && size != 8)))
    return kva_ptx_operand_error(d, &d->s->operands[2], cg ? "16 bytes" : "4, 8 or 16 bytes");
  i->bytes = (uint8_t)size;
  i->exec = kva_ptx_exec_cp_async;
  d->b->kernel->uses_async = true;
  KVA_TRY(kva_ptx_address(d, 0, &i->dst));
  dst_offset = i->imm;
  i->relocate2 = i->relocate;
  KVA_TRY(kva_ptx_address(d, 1, &i->src[0]));
  i->imm2 = dst_offset;
  i->src[1] = PTX_NONE; /* bytes to read; the rest is filled with zeros */
  return n == 4 ? kva_ptx_source(d, 3, PTX_U32, &i->src[1]) : KVA_OK;
}

static kva_status decode_cp(ptx_decoder *d) {
  ptx_ins *i = d->i;
  i->class = KVA_PTX_CLASS_ASYNC;
  bool reduce = kva_ptx_take(d, "reduce");
  if (!kva_ptx_take(d, "async")) return kva_ptx_unsupported(d);
  if (kva_ptx_take(d, "bulk")) return kva_ptx_decode_bulk(d, reduce);
  if (reduce) return kva_ptx_unsupported(d);
  if (kva_ptx_take(d, "mbarrier")) return kva_ptx_decode_copy_arrive(d);
  if (kva_ptx_take(d, "commit_group")) {
    i->exec = kva_ptx_exec_cp_commit;
    return kva_ptx_finish(d, 0);
  }
  i->exec = kva_ptx_exec_cp_wait;
  if (kva_ptx_take(d, "wait_all")) {
    i->flag = true;
    return kva_ptx_finish(d, 0);
  }
  if (!kva_ptx_take(d, "wait_group")) return decode_copy(d);
  KVA_TRY(kva_ptx_finish(d, 1));
  return kva_ptx_immediate(d, 0, &i->imm);
}

/* ---- matrix fragments -------------------------------------------------------------------------------------------- */

static kva_status fragment(ptx_decoder *d, uint32_t k, uint32_t n, bool load, uint32_t *out) {
  const ptx_operand *o = &d->s->operands[k];
  bool list = o->kind == PTX_OPERAND_LIST;
  if (list ? o->n_items != n : n != 1) return kva_ptx_operand_error(d, o, "another number of registers");
  for (uint32_t r = 0; r < n; r++) {
    const ptx_operand *item = list ? &o->items[r] : o;
    KVA_TRY(load ? kva_ptx_dest_of(d, item, PTX_B32, false, &out[r])
                 : kva_ptx_source_of(d, item, PTX_B32, false, &out[r]));
  }
  return KVA_OK;
}

static kva_status decode_matrix_access(ptx_decoder *d, bool load) {
  ptx_ins *i = d->i;
  kva_ptx_take(d, "sync");
  kva_ptx_take(d, "aligned");
  i->sub = kva_ptx_take(d, "trans");
  bool shape = kva_ptx_take(d, "m8n8"), type = kva_ptx_take(d, "b16");
  i->n = kva_ptx_take(d, "x4") ? 4 : kva_ptx_take(d, "x2") ? 2 : kva_ptx_take(d, "x1") ? 1 : 0;
  i->space = (uint8_t)take_space(d);
  if (!shape || !type || !i->n || (i->space != PTX_SHARED && i->space != PTX_GENERIC)) return kva_ptx_unsupported(d);
  i->class = KVA_PTX_CLASS_MATRIX;
  i->exec = load ? kva_ptx_exec_ldmatrix : kva_ptx_exec_stmatrix;
  KVA_TRY(kva_ptx_finish(d, 2));
  i->list = KVA_NEW_ARRAY(d->b->arena, uint32_t, i->n);
  KVA_TRY(kva_ptx_address(d, load ? 1 : 0, &i->src[0]));
  return fragment(d, load ? 0 : 1, i->n, load, i->list);
}
static kva_status decode_ldmatrix(ptx_decoder *d) {
  return decode_matrix_access(d, true);
}
static kva_status decode_stmatrix(ptx_decoder *d) {
  return decode_matrix_access(d, false);
}

/* mma.sync.aligned.m16n8k16.row.col.f32.T.T.f32 and m16n8k8, with half the depth. Lists: d (4), a (4 or 2), b (2 or 1),
 * c (4). */
static kva_status decode_mma(ptx_decoder *d) {
  ptx_ins *i = d->i;
  bool mods = kva_ptx_take(d, "sync") && kva_ptx_take(d, "aligned") && kva_ptx_take(d, "row") && kva_ptx_take(d, "col");
  bool deep = kva_ptx_take(d, "m16n8k16"), flat = !deep && kva_ptx_take(d, "m16n8k8");
  ptx_type td = kva_ptx_take_type(d), ta = kva_ptx_take_type(d), tb = kva_ptx_take_type(d), tc = kva_ptx_take_type(d);
  if (!mods || !(deep || flat) || td != PTX_F32 || tc != PTX_F32 || ta != tb || (ta != PTX_F16 && ta != PTX_BF16))
    return kva_ptx_unsupported(d);
  uint32_t na = deep ? 4 : 2, nb = deep ? 2 : 1;
  i->class = KVA_PTX_CLASS_MATRIX;
  i->exec = kva_ptx_exec_mma;
  i->type = (uint8_t)ta;
  i->n = (uint8_t)(deep ? 16 : 8);
  KVA_TRY(kva_ptx_finish(d, 4));
  i->list = KVA_NEW_ARRAY(d->b->arena, uint32_t, 4 + na + nb + 4);
  KVA_TRY(fragment(d, 0, 4, true, i->list));
  KVA_TRY(fragment(d, 1, na, false, i->list + 4));
  KVA_TRY(fragment(d, 2, nb, false, i->list + 4 + na));
  return fragment(d, 3, 4, false, i->list + 4 + na + nb);
}

/* Prefetches are parsed and do nothing. */
static kva_status decode_prefetch(ptx_decoder *d) {
  static const char *const levels[] = {"L1", "L2", "L2::evict_last", "L2::evict_normal", NULL};
  kva_ptx_take_all(d, levels);
  kva_ptx_take(d, "tensormap");
  take_space(d);
  d->i->class = KVA_PTX_CLASS_OTHER_MEMORY;
  d->i->exec = kva_ptx_exec_nothing;
  KVA_TRY(kva_ptx_finish(d, 1));
  return kva_ptx_address(d, 0, &d->i->src[0]);
}

static const ptx_decode_row rows[] = {
    {"ld", decode_ld},
    {"ldu", decode_ld},
    {"st", decode_st},
    {"atom", decode_atom},
    {"red", decode_red},
    {"cp", decode_cp},
    {"ldmatrix", decode_ldmatrix},
    {"stmatrix", decode_stmatrix},
    {"mma", decode_mma},
    {"prefetch", decode_prefetch},
};
const ptx_decode_rows kva_ptx_decode_memory = {rows, sizeof rows / sizeof *rows};
