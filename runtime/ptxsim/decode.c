/* Decodes operands, modifiers, and the instructions of the form tables. */
#include "runtime/ptxsim/decode.h"

/* ---- slots ------------------------------------------------------------------------------------------------------- */

uint32_t kva_ptx_new_slot(ptx_builder *b, bool wide) {
  uint32_t slot = b->kernel->reg_bytes;
  b->kernel->reg_bytes += wide ? 256 : 128;
  return slot;
}

uint32_t kva_ptx_constant_slot(ptx_builder *b, uint64_t bits, bool wide, bool relocate) {
  struct {
    uint64_t bits, kind;
  } key = {bits, (uint64_t)wide * 2 + relocate};
  kva_ptx_kernel *k = b->kernel;
  uintptr_t known = (uintptr_t)kva_map_get(b->constants, &key, sizeof key);
  if (known) return k->constants.data[known - 1].slot;
  ptx_constant c = {kva_ptx_new_slot(b, wide), wide, relocate, bits};
  KVA_PUSH(b->arena, &k->constants, c);
  kva_map_set(b->constants, &key, sizeof key, (void *)(uintptr_t)k->constants.len);
  return c.slot;
}

static uint32_t special_slot(ptx_builder *b, ptx_special special) {
  uint32_t *slot = &b->kernel->special_slot[special];
  if (*slot == PTX_NONE) *slot = kva_ptx_new_slot(b, false);
  return *slot;
}

/* ---- errors and modifiers ---------------------------------------------------------------------------------------- */

kva_status kva_ptx_unsupported(ptx_decoder *d) {
  return kva_ptx_error_at(d->b->module, d->b->diag, KVA_UNSUPPORTED, d->s->line, d->s->column,
                          "unsupported instruction '%.100s'", d->s->text);
}
kva_status kva_ptx_operand_error(ptx_decoder *d, const ptx_operand *o, const char *wanted) {
  return kva_ptx_error_at(d->b->module, d->b->diag, KVA_INVALID, o->line, o->column, "'%.100s' takes %s here",
                          d->s->text, wanted);
}

bool kva_ptx_take(ptx_decoder *d, const char *mod) {
  for (uint32_t i = 0; i < d->s->n_mods; i++)
    if (!d->s->taken[i] && !strcmp(d->s->mods[i], mod)) return d->s->taken[i] = true;
  return false;
}
void kva_ptx_take_all(ptx_decoder *d, const char *const *mods) {
  for (; *mods; mods++) kva_ptx_take(d, *mods);
}
ptx_type kva_ptx_take_type(ptx_decoder *d) {
  for (uint32_t i = 0; i < d->s->n_mods; i++) {
    if (d->s->taken[i]) continue;
    ptx_type t = kva_ptx_type_from_name(d->s->mods[i], strlen(d->s->mods[i]));
    if (t == PTX_NOTYPE) continue;
    d->s->taken[i] = true;
    return t;
  }
  return PTX_NOTYPE;
}
kva_status kva_ptx_finish(ptx_decoder *d, uint32_t n) {
  for (uint32_t i = 0; i < d->s->n_mods; i++)
    if (!d->s->taken[i]) return kva_ptx_unsupported(d);
  if (d->s->n_operands == n) return KVA_OK;
  return kva_ptx_error_at(d->b->module, d->b->diag, KVA_INVALID, d->s->line, d->s->column,
                          "'%.100s' takes %u operands, found %u", d->s->text, n, d->s->n_operands);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static kva_status register_error(ptx_decoder *d, const ptx_operand *o, ptx_type t) {
  return kva_ptx_error_at(d->b->module, d->b->diag, KVA_INVALID, o->line, o->column,
                          "'%s' takes a register of %d bits here, %s is .%s", d->s->text, kva_ptx_type_bits(t), o->name,
                          kva_ptx_type_name(o->type));
}

static bool width_fits(ptx_type reg, ptx_type t, bool wider) {
  int have = kva_ptx_type_bits(reg), want = kva_ptx_type_bits(t);
  return have == want || (wider && have > want && reg != PTX_PRED) || (want == 8 && have == 16);
}

/* A constant as bits of type t. */
static kva_status immediate_bits(ptx_decoder *d, const ptx_operand *o, ptx_type t, uint64_t *out) {
  uint64_t bits = o->bits;
  int width = kva_ptx_type_bits(t);
  char kind = kva_ptx_type_kind(t);
  if (o->type == PTX_F64 && width == 32 && kind == 'f')
    bits = ptx_bits32((float)ptx_f64(bits));
  else if (o->type == PTX_F32 && t == PTX_F64)
    bits = ptx_bits64((double)ptx_f32((uint32_t)bits));
  else if (o->type == PTX_F64 && (width != 64 || kind == 'u' || kind == 's'))
    return kva_ptx_operand_error(d, o, "an integer");
  else if (o->type == PTX_F32 && (width != 32 || kind == 'u' || kind == 's'))
    return kva_ptx_operand_error(d, o, "an integer");
  else if (o->type == PTX_S64 && (t == PTX_F32 || t == PTX_F32Z || t == PTX_F64))
    return kva_ptx_operand_error(d, o, "a floating-point constant");
  *out = width == 64 ? bits : bits & ((1ull << width) - 1);
  return KVA_OK;
}

kva_status kva_ptx_source_of(ptx_decoder *d, const ptx_operand *o, ptx_type t, bool wider, uint32_t *out) {
  bool wide = kva_ptx_type_bits(t) == 64;
  if (o->negated || o->second) return kva_ptx_operand_error(d, o, "a plain operand");
  switch (o->kind) {
  case PTX_OPERAND_REG:
    if (!width_fits(o->type, t, wider)) return register_error(d, o, t);
    *out = o->slot;
    KVA_PUSH(d->b->arena, &d->reads, o->slot);
    return KVA_OK;
  case PTX_OPERAND_IMM: {
    uint64_t bits = 0;
    KVA_TRY(immediate_bits(d, o, t, &bits));
    *out = kva_ptx_constant_slot(d->b, bits, wide, false);
    return KVA_OK;
  }
  case PTX_OPERAND_SPECIAL:
    if (o->special >= PTX_N_SPECIALS || kva_ptx_type_bits(t) != 32)
      return kva_ptx_operand_error(d, o, "another operand");
    *out = special_slot(d->b, o->special);
    return KVA_OK;
  case PTX_OPERAND_SYMBOL:
    if (!wide && (kva_ptx_type_bits(t) != 32 || o->space != PTX_SHARED))
      return kva_ptx_operand_error(d, o, "a 64-bit address as .u64 or .b64");
    *out = kva_ptx_constant_slot(d->b, o->bits, wide, o->relocate);
    return KVA_OK;
  default: return kva_ptx_operand_error(d, o, "a register or a constant");
  }
}
static kva_status missing(ptx_decoder *d, uint32_t k) {
  return kva_ptx_error_at(d->b->module, d->b->diag, KVA_INVALID, d->s->line, d->s->column, "'%.100s' lacks operand %u",
                          d->s->text, k + 1);
}
kva_status kva_ptx_source(ptx_decoder *d, uint32_t k, ptx_type t, uint32_t *out) {
  return k < d->s->n_operands ? kva_ptx_source_of(d, &d->s->operands[k], t, false, out) : missing(d, k);
}

kva_status kva_ptx_dest_of(ptx_decoder *d, const ptx_operand *o, ptx_type t, bool wider, uint32_t *out) {
  if (o->kind == PTX_OPERAND_DISCARD) {
    *out = kva_ptx_new_slot(d->b, kva_ptx_type_bits(t) == 64);
    return KVA_OK;
  }
  if (o->kind != PTX_OPERAND_REG || o->negated || o->second) return kva_ptx_operand_error(d, o, "a register");
  if (!width_fits(o->type, t, wider)) return register_error(d, o, t);
  *out = o->slot;
  KVA_PUSH(d->b->arena, &d->writes, o->slot);
  return KVA_OK;
}
kva_status kva_ptx_dest(ptx_decoder *d, uint32_t k, ptx_type t, uint32_t *out) {
  return k < d->s->n_operands ? kva_ptx_dest_of(d, &d->s->operands[k], t, false, out) : missing(d, k);
}

kva_status kva_ptx_pred_source(ptx_decoder *d, uint32_t k, uint32_t *out) {
  if (k >= d->s->n_operands) return missing(d, k);
  const ptx_operand *o = &d->s->operands[k];
  if (o->kind == PTX_OPERAND_IMM && o->type == PTX_S64) {
    *out = (o->bits ? PTX_TRUE : PTX_FALSE) * 2u + o->negated;
    return KVA_OK;
  }
  if (o->kind != PTX_OPERAND_REG || o->type != PTX_PRED || o->second) return kva_ptx_operand_error(d, o, "a predicate");
  *out = o->slot * 2 + o->negated;
  return KVA_OK;
}
kva_status kva_ptx_pred_dest(ptx_decoder *d, const ptx_operand *o, uint32_t *out) {
  if (o->kind == PTX_OPERAND_DISCARD) {
    *out = d->b->kernel->n_preds++;
    return KVA_OK;
  }
  if (o->kind != PTX_OPERAND_REG || o->type != PTX_PRED || o->negated)
    return kva_ptx_operand_error(d, o, "a predicate register");
  *out = o->slot;
  return KVA_OK;
}
kva_status kva_ptx_immediate(ptx_decoder *d, uint32_t k, int64_t *out) {
  if (k >= d->s->n_operands) return missing(d, k);
  const ptx_operand *o = &d->s->operands[k];
  if (o->kind != PTX_OPERAND_IMM || o->type != PTX_S64) return kva_ptx_operand_error(d, o, "an integer constant");
  *out = (int64_t)o->bits;
  return KVA_OK;
}

static const ptx_form *find_form(const char *name, ptx_type type, bool ftz);

/* Inserts an instruction before the current one, which computes a new 64-bit slot from a and b. */
static uint32_t push_hidden(ptx_decoder *d, ptx_exec exec, uint32_t a, uint32_t b) {
  ptx_ins hidden = {.exec = exec,
                    .class = KVA_PTX_CLASS_CONVERT,
                    .guard = d->i->guard,
                    .line = d->i->line,
                    .text = d->i->text,
                    .hidden = true};
  hidden.src[0] = a;
  hidden.src[1] = b;
  hidden.dst = kva_ptx_new_slot(d->b, true);
  KVA_PUSH(d->b->arena, &d->b->ins, hidden);
  KVA_PUSH(d->b->arena, &d->b->targets, (const char *)NULL);
  return hidden.dst;
}

/* A 32-bit register may hold a shared address; it is widened for memory instructions. */
kva_status kva_ptx_address_of(ptx_decoder *d, const ptx_operand *o, uint32_t *out) {
  if (o->kind != PTX_OPERAND_ADDRESS) return kva_ptx_operand_error(d, o, "an address in brackets");
  *out = o->slot;
  if (o->slot != PTX_NONE) KVA_PUSH(d->b->arena, &d->reads, o->slot);
  if (o->slot != PTX_NONE && kva_ptx_type_bits(o->type) == 32) *out = push_hidden(d, kva_ptx_exec_widen, o->slot, 0);
  d->i->imm = (int64_t)o->bits;
  d->i->relocate = o->relocate;
  return KVA_OK;
}
kva_status kva_ptx_address(ptx_decoder *d, uint32_t k, uint32_t *out) {
  if (k >= d->s->n_operands) return missing(d, k);
  if (d->s->operands[k].n_items) return kva_ptx_operand_error(d, &d->s->operands[k], "an address without coordinates");
  return kva_ptx_address_of(d, &d->s->operands[k], out);
}
kva_status kva_ptx_add_offset(ptx_decoder *d, uint64_t offset, uint32_t *slot) {
  uint32_t constant = kva_ptx_constant_slot(d->b, offset, true, false);
  *slot = push_hidden(d, find_form("add", PTX_U64, false)->exec, *slot, constant);
  return KVA_OK;
}

/* ---- forms ------------------------------------------------------------------------------------------------------- */

static const ptx_form *find_form(const char *name, ptx_type type, bool ftz) {
  static const ptx_forms *const tables[] = {&kva_ptx_forms_integer, &kva_ptx_forms_bits, &kva_ptx_forms_float,
                                            &kva_ptx_forms_special, &kva_ptx_forms_half};
  if (ftz && type == PTX_F32) type = PTX_F32Z;
  for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
    for (uint32_t i = 0; i < tables[t]->n; i++)
      if (tables[t]->forms[i].type == type && !strcmp(tables[t]->forms[i].name, name)) return &tables[t]->forms[i];
  return NULL;
}

static ptx_type twice(ptx_type t) {
  switch (t) {
  case PTX_U16: return PTX_U32;
  case PTX_S16: return PTX_S32;
  case PTX_U32: return PTX_U64;
  default: return PTX_S64;
  }
}
static ptx_type operand_type(char code, ptx_type t) {
  return code == 'w' ? twice(t) : code == 'u' ? PTX_B32 : t;
}

/* The mnemonic without types, .rn and .ftz. f64 keeps .ftz, which belongs to the operation's name there. */
static kva_status decode_form(ptx_decoder *d) {
  char name[64];
  int n = snprintf(name, sizeof name, "%s", d->s->base);
  ptx_type type = kva_ptx_take_type(d);
  bool ftz = type != PTX_F64 && kva_ptx_take(d, "ftz");
  kva_ptx_take(d, "rn");
  for (uint32_t i = 0; i < d->s->n_mods && n < (int)sizeof name; i++) {
    if (d->s->taken[i]) continue;
    n += snprintf(name + n, sizeof name - (size_t)n, ".%s", d->s->mods[i]);
    d->s->taken[i] = true;
  }
  const ptx_form *form = find_form(name, type, ftz);
  if (!form) return kva_ptx_unsupported(d);
  d->i->exec = form->exec;
  d->i->class = (uint8_t)form->class;
  d->i->type = (uint8_t)type;
  uint32_t n_operands = (uint32_t)strlen(form->operands);
  KVA_TRY(kva_ptx_finish(d, n_operands));
  KVA_TRY(kva_ptx_dest(d, 0, operand_type(form->operands[0], type), &d->i->dst));
  for (uint32_t k = 1; k < n_operands; k++)
    KVA_TRY(kva_ptx_source(d, k, operand_type(form->operands[k], type), &d->i->src[k - 1]));
  return KVA_OK;
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

static const ptx_decode_row *find_row(const char *base) {
  static const ptx_decode_rows *const tables[] = {&kva_ptx_decode_moves, &kva_ptx_decode_memory,
                                                  &kva_ptx_decode_control, &kva_ptx_decode_async};
  for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
    for (uint32_t i = 0; i < tables[t]->n; i++)
      if (!strcmp(tables[t]->rows[i].base, base)) return &tables[t]->rows[i];
  return NULL;
}

static bool has_form(const char *base) {
  static const ptx_forms *const tables[] = {&kva_ptx_forms_integer, &kva_ptx_forms_bits, &kva_ptx_forms_float,
                                            &kva_ptx_forms_special, &kva_ptx_forms_half};
  size_t n = strlen(base);
  for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
    for (uint32_t i = 0; i < tables[t]->n; i++) {
      const char *name = tables[t]->forms[i].name;
      if (!strncmp(name, base, n) && (name[n] == 0 || name[n] == '.')) return true;
    }
  return false;
}
bool kva_ptx_knows(const char *base) {
  return find_row(base) || has_form(base);
}

static bool all_predicates(const ptx_statement *s) {
  return s->n_mods == 1 && !strcmp(s->mods[0], "pred");
}

kva_status kva_ptx_decode(ptx_builder *b, ptx_statement *s) {
  ptx_ins ins = {.guard = s->guard,
                 .line = s->line,
                 .source_line = s->source_line,
                 .text = s->text,
                 .target = PTX_NONE,
                 .reconverge = PTX_NONE};
  ptx_decoder d = {.b = b, .s = s, .i = &ins};
  const ptx_decode_row *row = find_row(s->base);
  bool logic = all_predicates(s) && strcmp(s->base, "mov");
  KVA_TRY(logic ? kva_ptx_decode_pred_logic(&d) : row ? row->decode(&d) : decode_form(&d));
  ins.reads = d.reads.data;
  ins.writes = d.writes.data;
  ins.n_reads = (uint16_t)d.reads.len;
  ins.n_writes = (uint16_t)d.writes.len;
  KVA_PUSH(b->arena, &b->ins, ins);
  KVA_PUSH(b->arena, &b->targets, d.target);
  return KVA_OK;
}
