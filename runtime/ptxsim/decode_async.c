/* mbarriers, bulk copies, wgmma, proxy fences, setmaxnreg. */
#include "runtime/ptxsim/decode.h"

static bool take_shared(ptx_decoder *d) {
  return kva_ptx_take(d, "shared::cta") || kva_ptx_take(d, "shared");
}

/* An address plus its offset, in one slot. */
static kva_status whole_address(ptx_decoder *d, const ptx_operand *o, uint32_t *out) {
  ptx_operand without = *o;
  if (o->kind != PTX_OPERAND_ADDRESS) return kva_ptx_operand_error(d, o, "an address in brackets");
  if (o->slot == PTX_NONE) {
    *out = kva_ptx_constant_slot(d->b, o->bits, true, o->relocate);
    return KVA_OK;
  }
  without.bits = 0;
  KVA_TRY(kva_ptx_address_of(d, &without, out));
  return o->bits ? kva_ptx_add_offset(d, o->bits, out) : KVA_OK;
}
static kva_status whole_address_at(ptx_decoder *d, uint32_t k, uint32_t *out) {
  return whole_address(d, &d->s->operands[k], out);
}

/* ---- mbarrier ---------------------------------------------------------------------------------------------------- */

static kva_status mbarrier_address(ptx_decoder *d, uint32_t k) {
  d->i->bytes = 8;
  d->i->n = 1;
  d->i->src[1] = PTX_NONE;
  d->i->dst = PTX_NONE;
  return kva_ptx_address(d, k, &d->i->src[0]);
}

/* mbarrier.{test_wait,try_wait}{.parity} p, [a], state or parity{, time}: the time is ignored. */
static kva_status decode_mbarrier_wait(ptx_decoder *d, bool may_suspend) {
  ptx_ins *i = d->i;
  i->op = PTX_OP_MBARRIER;
  i->flag2 = kva_ptx_take(d, "parity");
  uint32_t n = d->s->n_operands;
  KVA_TRY(kva_ptx_finish(d, may_suspend && n == 4 ? 4 : 3));
  KVA_TRY(mbarrier_address(d, 1));
  KVA_TRY(kva_ptx_pred_dest(d, &d->s->operands[0], &i->dst));
  uint32_t time;
  if (n == 4) KVA_TRY(kva_ptx_source(d, 3, PTX_B32, &time));
  return kva_ptx_source(d, 2, i->flag2 ? PTX_B32 : PTX_B64, &i->src[1]);
}

/* arrive{.expect_tx}{.noComplete} state or _, [a]{, count} */
static kva_status decode_mbarrier_arrive(ptx_decoder *d) {
  ptx_ins *i = d->i;
  bool bytes = kva_ptx_take(d, "expect_tx");
  i->sub = bytes ? PTX_MBARRIER_ARRIVE_TX : PTX_MBARRIER_ARRIVE;
  const ptx_operand *first = &d->s->operands[0];
  bool state = d->s->n_operands && first->kind != PTX_OPERAND_ADDRESS;
  uint32_t n = d->s->n_operands, at = state ? 1 : 0;
  KVA_TRY(kva_ptx_finish(d, n == at + 2 || bytes ? at + 2 : at + 1));
  KVA_TRY(mbarrier_address(d, at));
  if (state && first->kind != PTX_OPERAND_DISCARD && i->space == PTX_CLUSTER)
    return kva_ptx_operand_error(d, first, "no state of an mbarrier that may be another CTA's, but _,");
  if (state && first->kind != PTX_OPERAND_DISCARD) KVA_TRY(kva_ptx_dest(d, 0, PTX_B64, &i->dst));
  return n == at + 2 ? kva_ptx_source(d, at + 1, PTX_B32, &i->src[1]) : KVA_OK;
}

static kva_status decode_mbarrier(ptx_decoder *d) {
  static const char *const mods[] = {"release", "acquire", "relaxed", "cta", "cluster", "b64", NULL};
  ptx_ins *i = d->i;
  i->class = KVA_PTX_CLASS_ASYNC;
  i->exec = kva_ptx_exec_mbarrier;
  kva_ptx_take_all(d, mods);
  i->space = take_shared(d) ? PTX_SHARED : kva_ptx_take(d, "shared::cluster") ? PTX_CLUSTER : PTX_GENERIC;
  if (kva_ptx_take(d, "arrive")) return decode_mbarrier_arrive(d);
  bool expect = kva_ptx_take(d, "expect_tx"), complete = !expect && kva_ptx_take(d, "complete_tx");
  if (i->space == PTX_CLUSTER && !expect && !complete) return kva_ptx_unsupported(d);
  if (kva_ptx_take(d, "test_wait")) return decode_mbarrier_wait(d, false);
  if (kva_ptx_take(d, "try_wait")) return decode_mbarrier_wait(d, true);
  bool inval = kva_ptx_take(d, "inval");
  i->sub = inval                     ? PTX_MBARRIER_INVAL
           : expect                  ? PTX_MBARRIER_EXPECT_TX
           : complete                ? PTX_MBARRIER_COMPLETE_TX
           : kva_ptx_take(d, "init") ? PTX_MBARRIER_INIT
                                     : 255;
  if (i->sub == 255) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_finish(d, inval ? 1 : 2));
  KVA_TRY(mbarrier_address(d, 0));
  return inval ? KVA_OK : kva_ptx_source(d, 1, PTX_B32, &i->src[1]);
}

/* cp.async.mbarrier.arrive{.noinc}.shared.b64 [a] */
kva_status kva_ptx_decode_copy_arrive(ptx_decoder *d) {
  d->i->flag2 = kva_ptx_take(d, "noinc");
  kva_ptx_take(d, "b64");
  d->i->space = take_shared(d) ? PTX_SHARED : PTX_GENERIC;
  d->i->exec = kva_ptx_exec_copy_arrive;
  d->b->kernel->uses_async = true;
  if (!kva_ptx_take(d, "arrive")) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_finish(d, 1));
  return mbarrier_address(d, 0);
}

/* ---- bulk copies ------------------------------------------------------------------------------------------------- */

/* Indices of slots in `list`: see exec_bulk.c. */
enum { SHARED, MBARRIER, GLOBAL, SIZE, RANKS, COORDINATES, MOST = COORDINATES + KVA_PTXSIM_MAP_RANK };

static uint8_t take_rank(ptx_decoder *d) {
  static const char *const names[] = {"1d", "2d", "3d", "4d", "5d"};
  for (uint8_t r = 0; r < 5; r++)
    if (kva_ptx_take(d, names[r])) return (uint8_t)(r + 1);
  return 0;
}

static kva_status map_operand(ptx_decoder *d, uint32_t k) {
  const ptx_operand *o = &d->s->operands[k];
  if (o->kind != PTX_OPERAND_ADDRESS || o->n_items != d->i->n)
    return kva_ptx_operand_error(d, o, "[tensor map, {as many coordinates as dimensions}]");
  KVA_TRY(whole_address(d, o, &d->i->list[GLOBAL]));
  for (uint32_t c = 0; c < o->n_items; c++)
    KVA_TRY(kva_ptx_source_of(d, &o->items[c], PTX_S32, false, &d->i->list[COORDINATES + c]));
  return KVA_OK;
}

/* A cache policy of .L2::cache_hint is parsed and ignored. */
static kva_status bulk_operands(ptx_decoder *d, uint32_t n, bool hint) {
  uint32_t policy;
  KVA_TRY(kva_ptx_finish(d, n + hint));
  return hint ? kva_ptx_source(d, n, PTX_B64, &policy) : KVA_OK;
}

/* .multicast::cluster takes a mask of the CTAs that receive the copy; imm2 tells of it. */
static kva_status decode_bulk_load(ptx_decoder *d) {
  bool hint = kva_ptx_take(d, "L2::cache_hint");
  uint32_t *list = d->i->list, plain = d->i->flag2 ? 0 : 1;
  bool multicast = kva_ptx_take(d, "multicast::cluster");
  d->i->sub = PTX_BULK_LOAD;
  d->i->imm2 = multicast;
  KVA_TRY(bulk_operands(d, 3 + plain + multicast, hint));
  if (multicast) KVA_TRY(kva_ptx_source(d, 3 + plain, PTX_B16, &list[RANKS]));
  KVA_TRY(whole_address_at(d, 0, &list[SHARED]));
  KVA_TRY(whole_address_at(d, 2 + plain, &list[MBARRIER]));
  if (d->i->flag2) return map_operand(d, 1);
  KVA_TRY(whole_address_at(d, 1, &list[GLOBAL]));
  return kva_ptx_source(d, 2, PTX_B32, &list[SIZE]);
}

static kva_status decode_bulk_store(ptx_decoder *d, bool reduce) {
  bool hint = kva_ptx_take(d, "L2::cache_hint");
  uint32_t *list = d->i->list;
  d->i->sub = reduce ? PTX_BULK_REDUCE : PTX_BULK_STORE;
  KVA_TRY(bulk_operands(d, d->i->flag2 ? 2 : 3, hint));
  KVA_TRY(whole_address_at(d, 1, &list[SHARED]));
  if (d->i->flag2) return map_operand(d, 0);
  KVA_TRY(whole_address_at(d, 0, &list[GLOBAL]));
  return kva_ptx_source(d, 2, PTX_B32, &list[SIZE]);
}

static kva_status decode_bulk_prefetch(ptx_decoder *d) {
  static const char *const mods[] = {"L2", "global", "tile", NULL};
  bool hint = kva_ptx_take(d, "L2::cache_hint");
  kva_ptx_take_all(d, mods);
  d->i->exec = kva_ptx_exec_nothing;
  KVA_TRY(bulk_operands(d, d->i->flag2 ? 1 : 2, hint));
  if (d->i->flag2) return map_operand(d, 0);
  KVA_TRY(whole_address_at(d, 0, &d->i->list[GLOBAL]));
  return kva_ptx_source(d, 1, PTX_B32, &d->i->list[SIZE]);
}

/* The element type of the sum. A tensor's type is that of its map, for which f32 stands here. */
static bool take_sum(ptx_decoder *d) {
  if (!kva_ptx_take(d, "add")) return false;
  kva_ptx_take(d, "noftz");
  ptx_type type = d->i->flag2 ? PTX_F32 : kva_ptx_take_type(d);
  d->i->type = (uint8_t)type;
  return kva_ptx_atomic_supported(PTX_ATOM_ADD, type);
}

static kva_status decode_bulk_wait(ptx_decoder *d) {
  kva_ptx_take(d, "read"); /* reads and writes complete together in the simulator */
  d->i->exec = kva_ptx_exec_bulk_wait;
  KVA_TRY(kva_ptx_finish(d, 1));
  return kva_ptx_immediate(d, 0, &d->i->imm);
}

/* Decodes what follows cp.async.bulk and cp.reduce.async.bulk. */
kva_status kva_ptx_decode_bulk(ptx_decoder *d, bool reduce) {
  ptx_ins *i = d->i;
  if (kva_ptx_take(d, "commit_group")) {
    i->exec = kva_ptx_exec_bulk_commit;
    return kva_ptx_finish(d, 0);
  }
  if (kva_ptx_take(d, "wait_group")) return decode_bulk_wait(d);
  i->flag2 = kva_ptx_take(d, "tensor");
  i->n = i->flag2 ? take_rank(d) : 1;
  i->bytes = 16;
  i->space = PTX_SHARED;
  i->exec = kva_ptx_exec_bulk;
  i->list = KVA_NEW_ARRAY(d->b->arena, uint32_t, MOST);
  memset(i->list, 0, MOST * sizeof *i->list);
  if (!i->n) return kva_ptx_unsupported(d);
  if (kva_ptx_take(d, "prefetch")) return decode_bulk_prefetch(d);
  if (i->flag2) kva_ptx_take(d, "tile");
  bool store = kva_ptx_take(d, "bulk_group"), load = kva_ptx_take(d, "mbarrier::complete_tx::bytes");
  bool shared = (load && kva_ptx_take(d, "shared::cluster")) || kva_ptx_take(d, "shared::cta");
  if (store == load || !shared || !kva_ptx_take(d, "global")) return kva_ptx_unsupported(d);
  if (reduce && (load || !take_sum(d))) return kva_ptx_unsupported(d);
  return load ? decode_bulk_load(d) : decode_bulk_store(d, reduce);
}

/* ---- wgmma ------------------------------------------------------------------------------------------------------- */

static kva_status registers(ptx_decoder *d, uint32_t k, uint32_t n, ptx_type type, bool write, uint32_t *out) {
  const ptx_operand *o = &d->s->operands[k];
  if (o->kind != PTX_OPERAND_LIST || o->n_items != n)
    return kva_ptx_operand_error(d, o, "another number of registers in braces");
  for (uint32_t r = 0; r < n; r++) {
    if (o->items[r].kind != PTX_OPERAND_REG) return kva_ptx_operand_error(d, &o->items[r], "a register");
    KVA_TRY(write ? kva_ptx_dest_of(d, &o->items[r], type, false, &out[r])
                  : kva_ptx_source_of(d, &o->items[r], type, false, &out[r]));
  }
  return KVA_OK;
}

/* Claims .m64nNk16; returns N / 8, or 0. */
static uint8_t take_shape(ptx_decoder *d) {
  for (int n = 8; n <= 256; n += 8) {
    char name[16];
    snprintf(name, sizeof name, "m64n%dk16", n);
    if (kva_ptx_take(d, name)) return (uint8_t)(n / 8);
  }
  return 0;
}

/* imm-scale-a, imm-scale-b (1 or -1), then imm-trans-a of a descriptor and imm-trans-b (0 or 1), as bits of imm. */
static kva_status immediates(ptx_decoder *d, uint32_t first) {
  bool a_in_registers = d->i->src[0] == PTX_NONE;
  uint32_t bit = 0;
  for (uint32_t k = first; k < d->s->n_operands; k++, bit++) {
    int64_t value, set = bit < 2 ? -1 : 1;
    KVA_TRY(kva_ptx_immediate(d, k, &value));
    if (value != set && value != set + (bit < 2 ? 2 : -1))
      return kva_ptx_operand_error(d, &d->s->operands[k], bit < 2 ? "1 or -1" : "0 or 1");
    uint32_t place = bit == 2 && a_in_registers ? 3 : bit;
    if (value == set) d->i->imm |= 1 << place;
  }
  return KVA_OK;
}

/* d, a, b, scale-d, scale-a, scale-b{, trans-a}, trans-b */
static kva_status decode_wgmma_product(ptx_decoder *d) {
  ptx_ins *i = d->i;
  i->n = take_shape(d);
  ptx_type td = kva_ptx_take_type(d), ta = kva_ptx_take_type(d), tb = kva_ptx_take_type(d);
  if (!i->n || td != PTX_F32 || ta != tb || (ta != PTX_F16 && ta != PTX_BF16)) return kva_ptx_unsupported(d);
  i->type = (uint8_t)ta;
  i->bytes = 16;
  i->exec = kva_ptx_exec_wgmma;
  d->b->kernel->uses_wgmma = true;
  bool in_registers = d->s->n_operands > 1 && d->s->operands[1].kind == PTX_OPERAND_LIST;
  uint32_t n_sums = i->n * 4u;
  KVA_TRY(kva_ptx_finish(d, in_registers ? 7 : 8));
  i->list = KVA_NEW_ARRAY(d->b->arena, uint32_t, n_sums + 4);
  KVA_TRY(registers(d, 0, n_sums, PTX_F32, true, i->list));
  i->src[0] = PTX_NONE;
  if (in_registers)
    KVA_TRY(registers(d, 1, 4, PTX_B32, false, i->list + n_sums));
  else
    KVA_TRY(kva_ptx_source(d, 1, PTX_B64, &i->src[0]));
  KVA_TRY(kva_ptx_source(d, 2, PTX_B64, &i->src[1]));
  KVA_TRY(kva_ptx_pred_source(d, 3, &i->src[2]));
  return immediates(d, 4);
}

static kva_status decode_wgmma(ptx_decoder *d) {
  ptx_ins *i = d->i;
  i->class = KVA_PTX_CLASS_MATRIX;
  if (!kva_ptx_take(d, "sync") || !kva_ptx_take(d, "aligned")) return kva_ptx_unsupported(d);
  if (kva_ptx_take(d, "mma_async")) return decode_wgmma_product(d);
  if (kva_ptx_take(d, "wait_group")) {
    i->op = PTX_OP_WGMMA_WAIT;
    d->b->kernel->uses_wgmma = true;
    KVA_TRY(kva_ptx_finish(d, 1));
    KVA_TRY(kva_ptx_immediate(d, 0, &i->imm));
    return i->imm < 0 ? kva_ptx_operand_error(d, &d->s->operands[0], "a number of groups") : KVA_OK;
  }
  bool fence = kva_ptx_take(d, "fence");
  if (!fence && !kva_ptx_take(d, "commit_group")) return kva_ptx_unsupported(d);
  i->exec = fence ? kva_ptx_exec_wgmma_fence : kva_ptx_exec_wgmma_commit;
  d->b->kernel->uses_wgmma = true;
  return kva_ptx_finish(d, 0);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static kva_status decode_setmaxnreg(ptx_decoder *d) {
  ptx_ins *i = d->i;
  i->class = KVA_PTX_CLASS_BARRIER;
  i->op = PTX_OP_SETMAXNREG;
  i->flag = kva_ptx_take(d, "inc");
  bool mods = (i->flag || kva_ptx_take(d, "dec")) && kva_ptx_take(d, "sync") && kva_ptx_take(d, "aligned");
  if (!mods || !kva_ptx_take(d, "u32")) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_finish(d, 1));
  KVA_TRY(kva_ptx_immediate(d, 0, &i->imm));
  if (i->imm >= 24 && i->imm <= 256 && i->imm % 8 == 0) return KVA_OK;
  return kva_ptx_operand_error(d, &d->s->operands[0], "a multiple of 8 from 24 to 256");
}

/* fence.proxy.async{.global, .shared::cta, .shared::cluster}, fence.mbarrier_init.release.cluster. Proxies are modelled
 * for shared memory only, so the fence of global memory does nothing. */
kva_status kva_ptx_decode_proxy_fence(ptx_decoder *d) {
  bool init = kva_ptx_take(d, "mbarrier_init");
  if (init && (!kva_ptx_take(d, "release") || !kva_ptx_take(d, "cluster"))) return kva_ptx_unsupported(d);
  if (!init && (!kva_ptx_take(d, "proxy") || !kva_ptx_take(d, "async"))) return kva_ptx_unsupported(d);
  bool global = !init && kva_ptx_take(d, "global");
  if (!init && !global && !take_shared(d)) kva_ptx_take(d, "shared::cluster");
  d->i->exec = init ? kva_ptx_exec_mbarrier_fence : global ? kva_ptx_exec_nothing : kva_ptx_exec_proxy_fence;
  return kva_ptx_finish(d, 0);
}

/* Cache policies have no effect: the result may be any 64 bits. */
static kva_status decode_createpolicy(ptx_decoder *d) {
  static const char *const mods[] = {
      "fractional", "L2::evict_first", "L2::evict_last", "L2::evict_normal", "L2::evict_unchanged", "b64", NULL};
  kva_ptx_take_all(d, mods);
  d->i->class = KVA_PTX_CLASS_MOVE;
  d->i->exec = kva_ptx_exec_mov64;
  d->i->src[0] = kva_ptx_constant_slot(d->b, 0, true, false);
  KVA_TRY(kva_ptx_finish(d, d->s->n_operands == 2 ? 2 : 1));
  return kva_ptx_dest(d, 0, PTX_B64, &d->i->dst);
}

static const ptx_decode_row rows[] = {
    {"mbarrier", decode_mbarrier},
    {"wgmma", decode_wgmma},
    {"setmaxnreg", decode_setmaxnreg},
    {"createpolicy", decode_createpolicy},
};
const ptx_decode_rows kva_ptx_decode_async = {rows, sizeof rows / sizeof *rows};
