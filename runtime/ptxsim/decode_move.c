/* Moves, conversions, comparisons, selection, address spaces. */
#include "runtime/ptxsim/decode.h"

/* ---- mov --------------------------------------------------------------------------------------------------------- */

static kva_status part_type(ptx_decoder *d, const ptx_operand *list, ptx_type whole, ptx_type *out) {
  int bits = kva_ptx_type_bits(whole) / (int)list->n_items;
  *out = bits == 32 ? PTX_B32 : bits == 16 ? PTX_B16 : PTX_B8;
  if ((list->n_items == 2 || list->n_items == 4) && bits >= 8) return KVA_OK;
  return kva_ptx_operand_error(d, list, "2 or 4 registers in braces");
}

static kva_status decode_mov_list(ptx_decoder *d, ptx_type type) {
  bool unpack = d->s->operands[0].kind == PTX_OPERAND_LIST;
  const ptx_operand *list = &d->s->operands[unpack ? 0 : 1];
  ptx_type part;
  KVA_TRY(part_type(d, list, type, &part));
  d->i->n = (uint8_t)list->n_items;
  d->i->bytes = (uint8_t)(kva_ptx_type_bits(part) / 8);
  d->i->type = (uint8_t)type;
  d->i->list = KVA_NEW_ARRAY(d->b->arena, uint32_t, list->n_items);
  d->i->exec = unpack ? kva_ptx_exec_unpack : kva_ptx_exec_pack;
  for (uint32_t k = 0; k < list->n_items; k++)
    KVA_TRY(unpack ? kva_ptx_dest_of(d, &list->items[k], part, false, &d->i->list[k])
                   : kva_ptx_source_of(d, &list->items[k], part, false, &d->i->list[k]));
  return unpack ? kva_ptx_source(d, 1, type, &d->i->src[0]) : kva_ptx_dest(d, 0, type, &d->i->dst);
}

static kva_status decode_mov_pred(ptx_decoder *d) {
  d->i->exec = kva_ptx_exec_mov_pred;
  KVA_TRY(kva_ptx_pred_dest(d, &d->s->operands[0], &d->i->dst));
  return kva_ptx_pred_source(d, 1, &d->i->src[0]);
}

static kva_status decode_mov(ptx_decoder *d) {
  ptx_type type = kva_ptx_take_type(d);
  d->i->class = KVA_PTX_CLASS_MOVE;
  if (type == PTX_NOTYPE) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_finish(d, 2));
  if (type == PTX_PRED) return decode_mov_pred(d);
  const ptx_operand *from = &d->s->operands[1];
  if (d->s->operands[0].kind == PTX_OPERAND_LIST || from->kind == PTX_OPERAND_LIST) return decode_mov_list(d, type);
  bool wide = kva_ptx_type_bits(type) == 64;
  KVA_TRY(kva_ptx_dest(d, 0, type, &d->i->dst));
  if (from->kind == PTX_OPERAND_SPECIAL && from->special >= PTX_N_SPECIALS) {
    d->i->exec = kva_ptx_exec_clock;
    d->i->flag = wide;
    return KVA_OK;
  }
  d->i->exec = wide ? kva_ptx_exec_mov64 : kva_ptx_exec_mov32;
  return kva_ptx_source(d, 1, type, &d->i->src[0]);
}

/* ---- cvt --------------------------------------------------------------------------------------------------------- */

static kva_status decode_cvt_pair(ptx_decoder *d, ptx_type to) {
  d->i->exec = kva_ptx_find_convert_pair(to, kva_ptx_take(d, "relu"));
  kva_ptx_take(d, "rn");
  if (!d->i->exec) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_finish(d, 3));
  KVA_TRY(kva_ptx_dest(d, 0, to, &d->i->dst));
  KVA_TRY(kva_ptx_source(d, 1, PTX_F32, &d->i->src[0]));
  return kva_ptx_source(d, 2, PTX_F32, &d->i->src[1]);
}

static kva_status decode_cvt(ptx_decoder *d) {
  static const char *const roundings[] = {"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", NULL};
  const char *rounding = "";
  for (int k = 0; roundings[k]; k++)
    if (kva_ptx_take(d, roundings[k])) rounding = roundings[k];
  ptx_type to = kva_ptx_take_type(d), from = kva_ptx_take_type(d);
  d->i->class = KVA_PTX_CLASS_CONVERT;
  if (to == PTX_NOTYPE || from == PTX_NOTYPE) return kva_ptx_unsupported(d);
  if ((to == PTX_F16X2 || to == PTX_BF16X2) && from == PTX_F32 && !strcmp(rounding, "rn"))
    return decode_cvt_pair(d, to);
  bool saturate = kva_ptx_take(d, "sat"), ftz = kva_ptx_take(d, "ftz");
  if (!kva_ptx_find_convert(to, from, rounding, saturate, ftz, d->i)) return kva_ptx_unsupported(d);
  KVA_TRY(kva_ptx_finish(d, 2));
  KVA_TRY(kva_ptx_dest_of(d, &d->s->operands[0], to, kva_ptx_type_kind(to) != 'f', &d->i->dst));
  d->i->flag = d->s->operands[0].kind == PTX_OPERAND_REG && kva_ptx_type_bits(d->s->operands[0].type) == 64;
  KVA_TRY(kva_ptx_source_of(d, &d->s->operands[1], from, true, &d->i->src[0]));
  bool wide = d->s->operands[1].kind == PTX_OPERAND_REG && kva_ptx_type_bits(d->s->operands[1].type) == 64;
  /* Only the general path supports registers wider than the types. */
  if (wide != (kva_ptx_type_bits(from) == 64) || d->i->flag != (kva_ptx_type_bits(to) == 64) ||
      kva_ptx_type_bits(to) == 8 ||
      (d->s->operands[0].kind == PTX_OPERAND_REG && kva_ptx_type_bits(d->s->operands[0].type) != kva_ptx_type_bits(to)))
    d->i->exec = kva_ptx_exec_convert;
  d->i->n = wide;
  bool narrow = d->s->operands[0].kind == PTX_OPERAND_REG && kva_ptx_type_bits(d->s->operands[0].type) < 32;
  d->i->bytes = narrow ? 2 : 4;
  return KVA_OK;
}

/* ---- comparisons ------------------------------------------------------------------------------------------------- */

static bool take_boolean(ptx_decoder *d) {
  static const char *const names[] = {"and", "or", "xor"};
  for (int k = 0; k < 3; k++) {
    if (!kva_ptx_take(d, names[k])) continue;
    d->i->sub = (uint8_t)(k + 1);
    return true;
  }
  return false;
}

static kva_status take_compare(ptx_decoder *d, ptx_type type) {
  if (d->s->n_mods == 0) return kva_ptx_unsupported(d);
  bool ftz = kva_ptx_take(d, "ftz");
  d->i->compare = kva_ptx_find_compare(d->s->mods[0], ftz && type == PTX_F32 ? PTX_F32Z : type);
  d->s->taken[0] = true;
  d->i->class = KVA_PTX_CLASS_MOVE;
  return d->i->compare ? KVA_OK : kva_ptx_unsupported(d);
}

static kva_status compared_operands(ptx_decoder *d, ptx_type type, bool boolean) {
  KVA_TRY(kva_ptx_finish(d, boolean ? 4 : 3));
  KVA_TRY(kva_ptx_source(d, 1, type, &d->i->src[0]));
  KVA_TRY(kva_ptx_source(d, 2, type, &d->i->src[1]));
  return boolean ? kva_ptx_pred_source(d, 3, &d->i->src[2]) : KVA_OK;
}

/* setp.cmp.f16x2 p|q, a, b: the halves of both registers are unpacked into four slots and compared. */
static kva_status decode_setp_pair(ptx_decoder *d, ptx_type type) {
  KVA_TRY(take_compare(d, type == PTX_F16X2 ? PTX_F16 : PTX_BF16));
  KVA_TRY(compared_operands(d, type, take_boolean(d)));
  d->i->exec = kva_ptx_exec_setp_pair;
  d->i->list = KVA_NEW_ARRAY(d->b->arena, uint32_t, 4);
  for (uint32_t k = 0; k < 4; k++) d->i->list[k] = kva_ptx_new_slot(d->b, false);
  ptx_operand to = d->s->operands[0];
  if (!to.second) return kva_ptx_operand_error(d, &to, "two predicates, p|q,");
  KVA_TRY(kva_ptx_pred_dest(d, to.second, &d->i->dst2));
  return kva_ptx_pred_dest(d, &to, &d->i->dst);
}

static kva_status decode_setp(ptx_decoder *d) {
  ptx_type type = kva_ptx_take_type(d);
  if (type == PTX_F16X2 || type == PTX_BF16X2) return decode_setp_pair(d, type);
  KVA_TRY(take_compare(d, type));
  KVA_TRY(compared_operands(d, type, take_boolean(d)));
  d->i->exec = kva_ptx_exec_setp;
  ptx_operand to = d->s->operands[0];
  d->i->dst2 = PTX_NONE;
  if (to.second) KVA_TRY(kva_ptx_pred_dest(d, to.second, &d->i->dst2));
  return kva_ptx_pred_dest(d, &to, &d->i->dst);
}

static kva_status decode_set(ptx_decoder *d) {
  ptx_type to = kva_ptx_take_type(d), type = kva_ptx_take_type(d);
  if (to != PTX_U32 && to != PTX_S32 && to != PTX_F32) return kva_ptx_unsupported(d);
  KVA_TRY(take_compare(d, type));
  KVA_TRY(compared_operands(d, type, take_boolean(d)));
  d->i->exec = kva_ptx_exec_set;
  d->i->imm = to == PTX_F32 ? 0x3f800000 : 0xffffffff;
  return kva_ptx_dest(d, 0, to, &d->i->dst);
}

static kva_status decode_selp(ptx_decoder *d) {
  ptx_type type = kva_ptx_take_type(d);
  d->i->class = KVA_PTX_CLASS_MOVE;
  if (type == PTX_NOTYPE || type == PTX_PRED) return kva_ptx_unsupported(d);
  d->i->exec = kva_ptx_type_bits(type) == 64 ? kva_ptx_exec_selp64 : kva_ptx_exec_selp32;
  KVA_TRY(kva_ptx_finish(d, 4));
  KVA_TRY(kva_ptx_dest(d, 0, type, &d->i->dst));
  KVA_TRY(kva_ptx_source(d, 1, type, &d->i->src[0]));
  KVA_TRY(kva_ptx_source(d, 2, type, &d->i->src[1]));
  return kva_ptx_pred_source(d, 3, &d->i->src[2]);
}

/* and, or, xor, not of predicates. */
kva_status kva_ptx_decode_pred_logic(ptx_decoder *d) {
  static const char *const names[] = {"and", "or", "xor", "not"};
  uint32_t op = 0;
  while (op < 4 && strcmp(d->s->base, names[op])) op++;
  kva_ptx_take(d, "pred");
  if (op == 4) return kva_ptx_unsupported(d);
  d->i->sub = (uint8_t)op;
  d->i->class = KVA_PTX_CLASS_MOVE;
  d->i->exec = kva_ptx_exec_pred_logic;
  KVA_TRY(kva_ptx_finish(d, op == 3 ? 2 : 3));
  KVA_TRY(kva_ptx_pred_dest(d, &d->s->operands[0], &d->i->dst));
  KVA_TRY(kva_ptx_pred_source(d, 1, &d->i->src[0]));
  return op == 3 ? KVA_OK : kva_ptx_pred_source(d, 2, &d->i->src[1]);
}

/* ---- address spaces ---------------------------------------------------------------------------------------------- */

static bool take_space(ptx_decoder *d, ptx_space *out) {
  static const struct {
    const char *name;
    ptx_space space;
  } spaces[] = {{"global", PTX_GLOBAL}, {"shared", PTX_SHARED}, {"shared::cta", PTX_SHARED}, {"local", PTX_LOCAL},
                {"const", PTX_CONST},   {"param", PTX_PARAM},   {"param::entry", PTX_PARAM}};
  for (size_t k = 0; k < sizeof spaces / sizeof *spaces; k++) {
    if (!kva_ptx_take(d, spaces[k].name)) continue;
    *out = spaces[k].space;
    return true;
  }
  return false;
}

static kva_status decode_cvta(ptx_decoder *d) {
  ptx_space space;
  d->i->flag = kva_ptx_take(d, "to");
  if (!take_space(d, &space) || kva_ptx_type_bits(kva_ptx_take_type(d)) != 64) return kva_ptx_unsupported(d);
  d->i->space = (uint8_t)space;
  d->i->class = KVA_PTX_CLASS_INTEGER;
  d->i->exec = kva_ptx_exec_cvta;
  KVA_TRY(kva_ptx_finish(d, 2));
  KVA_TRY(kva_ptx_dest(d, 0, PTX_B64, &d->i->dst));
  return kva_ptx_source(d, 1, PTX_B64, &d->i->src[0]);
}

static kva_status decode_isspacep(ptx_decoder *d) {
  ptx_space space;
  if (!take_space(d, &space)) return kva_ptx_unsupported(d);
  d->i->space = (uint8_t)space;
  d->i->class = KVA_PTX_CLASS_MOVE;
  d->i->exec = kva_ptx_exec_isspace;
  KVA_TRY(kva_ptx_finish(d, 2));
  KVA_TRY(kva_ptx_pred_dest(d, &d->s->operands[0], &d->i->dst));
  return kva_ptx_source(d, 1, PTX_B64, &d->i->src[0]);
}

/* mapa{.shared::cluster}.{u32,u64} d, a, rank and getctarank{.shared::cluster}.{u32,u64} d, a */
static kva_status decode_cluster_address(ptx_decoder *d, bool map) {
  ptx_ins *i = d->i;
  bool cluster = kva_ptx_take(d, "shared::cluster");
  ptx_type type = kva_ptx_take_type(d);
  if (type != PTX_U64 && (type != PTX_U32 || !cluster)) return kva_ptx_unsupported(d);
  i->flag2 = type == PTX_U64;
  i->class = KVA_PTX_CLASS_INTEGER;
  i->exec = map ? kva_ptx_exec_mapa : kva_ptx_exec_ctarank;
  KVA_TRY(kva_ptx_finish(d, map ? 3 : 2));
  KVA_TRY(kva_ptx_dest(d, 0, map ? type : PTX_U32, &i->dst));
  KVA_TRY(kva_ptx_source(d, 1, type, &i->src[0]));
  return map ? kva_ptx_source(d, 2, PTX_U32, &i->src[1]) : KVA_OK;
}
static kva_status decode_mapa(ptx_decoder *d) {
  return decode_cluster_address(d, true);
}
static kva_status decode_getctarank(ptx_decoder *d) {
  return decode_cluster_address(d, false);
}

static const ptx_decode_row rows[] = {
    {"mapa", decode_mapa},         {"getctarank", decode_getctarank},
    {"mov", decode_mov},           {"cvt", decode_cvt},
    {"setp", decode_setp},         {"set", decode_set},
    {"selp", decode_selp},         {"cvta", decode_cvta},
    {"isspacep", decode_isspacep},
};
const ptx_decode_rows kva_ptx_decode_moves = {rows, sizeof rows / sizeof *rows};
