/* Kernel bodies: registers, labels, statements with their operands. The decoder gets each statement as it is parsed;
 * branch targets are resolved at the end. */
#include "runtime/ptxsim/parse.h"

#include <ctype.h>

/* ---- registers --------------------------------------------------------------------------------------------------- */

static kva_status declare_register(ptx_parser *p, ptx_type type) {
  ptx_token name = p->token;
  if (name.kind != PTX_TOKEN_WORD || name.text[0] == '.') return kva_ptx_unexpected(p, "the name of a register");
  kva_ptx_advance(p);
  uint64_t n = 1;
  bool range = kva_ptx_accept(p, "<");
  if (range) {
    KVA_TRY(kva_ptx_parse_uint(p, PTX_MAX_REGISTERS, "a number of registers", &n));
    KVA_TRY(kva_ptx_expect(p, ">"));
  }
  p->n_registers += n;
  if (p->n_registers > PTX_MAX_REGISTERS) return PTX_PARSE_ERROR(p, "more than %d registers", PTX_MAX_REGISTERS);
  ptx_symbol *s;
  KVA_TRY(kva_ptx_declare(p, &name, &s));
  s->kind = range ? PTX_SYMBOL_RANGE : PTX_SYMBOL_REG;
  s->type = type;
  if (!range) return KVA_OK;
  s->n = (uint32_t)n;
  s->slots = KVA_NEW_ARRAY(p->arena, uint32_t, n + 1);
  memset(s->slots, 0xff, n * sizeof *s->slots); /* PTX_NONE */
  return KVA_OK;
}

static kva_status parse_registers(ptx_parser *p) {
  kva_ptx_advance(p);
  ptx_token t = p->token;
  ptx_type type =
      t.kind == PTX_TOKEN_WORD && t.text[0] == '.' ? kva_ptx_type_from_name(t.text + 1, t.n - 1) : PTX_NOTYPE;
  if (type == PTX_NOTYPE) return kva_ptx_unexpected(p, "a register type (vectors and .b128 are not supported)");
  kva_ptx_advance(p);
  do {
    KVA_TRY(declare_register(p, type));
  } while (kva_ptx_accept(p, ","));
  return kva_ptx_expect(p, ";");
}

/* The slot of a register, allocated at its first use: declared but unused registers cost nothing. */
static uint32_t use_slot(ptx_parser *p, ptx_type type, uint32_t *slot) {
  if (*slot != PTX_NONE) return *slot;
  if (type == PTX_PRED)
    *slot = p->builder.kernel->n_preds++;
  else
    *slot = kva_ptx_new_slot(&p->builder, kva_ptx_type_bits(type) == 64);
  return *slot;
}

/* Resolves "%r12" to number 12 of the range "%r". */
static uint32_t *find_in_range(ptx_parser *p, const char *name, size_t n, ptx_symbol **out_symbol) {
  size_t digits = 0;
  while (digits < n && digits < 8 && isdigit((unsigned char)name[n - 1 - digits])) digits++;
  for (size_t d = 1; d <= digits; d++) {
    ptx_symbol *s = kva_ptx_find_symbol(p, name, n - d);
    if (!s || s->kind != PTX_SYMBOL_RANGE) continue;
    uint32_t index = 0;
    for (size_t i = n - d; i < n; i++) index = index * 10 + (uint32_t)(name[i] - '0');
    if (index >= s->n) continue;
    *out_symbol = s;
    return &s->slots[index];
  }
  return NULL;
}

static bool find_special(const char *name, size_t n, ptx_special *out) {
  static const char *const names[] = {
#define PTX_SPECIAL_NAME(name, NAME) "%" #name,
      PTX_SPECIALS(PTX_SPECIAL_NAME)
#undef PTX_SPECIAL_NAME
          "%clock",
      "%clock64", "%globaltimer"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strlen(names[i]) != n || memcmp(names[i], name, n)) continue;
    *out = (ptx_special)i;
    return true;
  }
  return false;
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static kva_status unknown_name(ptx_parser *p, const ptx_token *t) {
  return kva_ptx_error_at(p->module, p->diag, KVA_INVALID, t->line, t->column, "'%.*s' is not declared",
                          (int)(t->n < 100 ? t->n : 100), t->text);
}

/* Places a shared variable of the module in a kernel that uses it. */
static kva_status place_shared(ptx_parser *p, ptx_symbol *s) {
  kva_ptx_kernel *k = p->builder.kernel;
  if (s->space == PTX_SHARED && s->relocate && s->align > k->dynamic_align) k->dynamic_align = (uint32_t)s->align;
  if (s->space != PTX_SHARED || s->relocate || s->placed == k) return KVA_OK;
  s->placed = k;
  s->address = (k->shared_bytes + s->align - 1) & ~(s->align - 1);
  if (s->address + s->size > PTX_MAX_SHARED)
    return PTX_PARSE_ERROR(p, "shared memory of the kernel exceeds %d bytes", PTX_MAX_SHARED);
  k->shared_bytes = (uint32_t)(s->address + s->size);
  return KVA_OK;
}

static kva_status name_operand(ptx_parser *p, const ptx_token *t, ptx_operand *out) {
  ptx_symbol *s = kva_ptx_find_symbol(p, t->text, t->n);
  uint32_t *slot = s && s->kind == PTX_SYMBOL_REG ? &s->slot : NULL;
  if (!s || s->kind == PTX_SYMBOL_RANGE) slot = find_in_range(p, t->text, t->n, &s);
  if (slot) {
    out->kind = PTX_OPERAND_REG;
    out->type = s->type;
    out->slot = use_slot(p, s->type, slot);
    out->name = kva_arena_strndup(p->arena, t->text, t->n < 60 ? t->n : 60);
    return KVA_OK;
  }
  if (s && s->kind == PTX_SYMBOL_VARIABLE) {
    KVA_TRY(place_shared(p, s));
    out->kind = PTX_OPERAND_SYMBOL;
    out->bits = s->address;
    out->space = s->space;
    out->relocate = s->relocate;
    out->has_symbol = true;
    return KVA_OK;
  }
  if (find_special(t->text, t->n, &out->special)) {
    out->kind = PTX_OPERAND_SPECIAL;
    return KVA_OK;
  }
  if (t->text[0] == '%') return unknown_name(p, t);
  out->kind = t->n == 1 && t->text[0] == '_' ? PTX_OPERAND_DISCARD : PTX_OPERAND_LABEL;
  out->name = kva_arena_strndup(p->arena, t->text, t->n);
  return KVA_OK;
}

static kva_status number_operand(ptx_parser *p, bool negative, ptx_operand *out) {
  const ptx_token *t = &p->token;
  out->kind = PTX_OPERAND_IMM;
  out->type = t->kind == PTX_TOKEN_INT ? PTX_S64 : t->kind == PTX_TOKEN_F32 ? PTX_F32 : PTX_F64;
  if (t->kind != PTX_TOKEN_INT && t->kind != PTX_TOKEN_F32 && t->kind != PTX_TOKEN_F64)
    return kva_ptx_unexpected(p, "an operand");
  out->bits = t->bits;
  if (negative)
    out->bits = t->kind == PTX_TOKEN_INT ? 0 - t->bits : t->bits ^ 1ull << (t->kind == PTX_TOKEN_F32 ? 31 : 63);
  kva_ptx_advance(p);
  return KVA_OK;
}

static kva_status list_operand(ptx_parser *p, ptx_operand *out);

/* , {coordinates} after the address of a tensor map */
static kva_status coordinates(ptx_parser *p, ptx_operand *out) {
  if (!kva_ptx_accept(p, ",")) return KVA_OK;
  ptx_operand list = {0};
  KVA_TRY(kva_ptx_expect(p, "{"));
  KVA_TRY(list_operand(p, &list));
  out->items = list.items;
  out->n_items = list.n_items;
  return KVA_OK;
}

/* [register or symbol or number, then + or - numbers, then coordinates] */
static kva_status address_operand(ptx_parser *p, ptx_operand *out) {
  uint64_t offset = 0;
  out->slot = PTX_NONE;
  if (p->token.kind == PTX_TOKEN_WORD) {
    ptx_token name = p->token;
    kva_ptx_advance(p);
    KVA_TRY(name_operand(p, &name, out));
    if (out->kind == PTX_OPERAND_SYMBOL)
      offset = out->bits, out->slot = PTX_NONE;
    else if (out->kind != PTX_OPERAND_REG || kva_ptx_type_bits(out->type) < 32)
      return unknown_name(p, &name);
  }
  bool first = out->kind == PTX_OPERAND_ADDRESS;
  while (first || kva_ptx_is(p, "+") || kva_ptx_is(p, "-")) {
    bool negative = false;
    while (kva_ptx_is(p, "+") || kva_ptx_is(p, "-")) {
      negative ^= kva_ptx_is(p, "-");
      kva_ptx_advance(p);
    }
    if (p->token.kind != PTX_TOKEN_INT) return kva_ptx_unexpected(p, "an offset");
    offset += negative ? 0 - p->token.bits : p->token.bits;
    kva_ptx_advance(p);
    first = false;
  }
  out->kind = PTX_OPERAND_ADDRESS;
  out->bits = offset;
  KVA_TRY(coordinates(p, out));
  return kva_ptx_expect(p, "]");
}

static kva_status simple_operand(ptx_parser *p, ptx_operand *out) {
  *out = (ptx_operand){.line = p->token.line, .column = p->token.column, .slot = PTX_NONE};
  if (kva_ptx_accept(p, "!")) out->negated = true;
  if (kva_ptx_accept(p, "-")) return number_operand(p, true, out);
  if (p->token.kind != PTX_TOKEN_WORD) return number_operand(p, false, out);
  ptx_token name = p->token;
  kva_ptx_advance(p);
  if (name.n == 7 && !memcmp(name.text, "WARP_SZ", 7)) {
    out->kind = PTX_OPERAND_IMM;
    out->type = PTX_S64;
    out->bits = PTX_LANES;
    return KVA_OK;
  }
  KVA_TRY(name_operand(p, &name, out));
  if (out->kind == PTX_OPERAND_SYMBOL && kva_ptx_accept(p, "+")) {
    ptx_operand offset = {0};
    KVA_TRY(number_operand(p, false, &offset));
    out->bits += offset.bits;
  }
  return KVA_OK;
}

static kva_status list_operand(ptx_parser *p, ptx_operand *out) {
  KVA_VEC(ptx_operand) items = {0};
  do {
    ptx_operand item;
    KVA_TRY(simple_operand(p, &item));
    if (items.len == 256) return PTX_PARSE_ERROR(p, "more than 256 operands in braces");
    KVA_PUSH(p->arena, &items, item);
  } while (kva_ptx_accept(p, ","));
  out->kind = PTX_OPERAND_LIST;
  out->items = items.data;
  out->n_items = items.len;
  return kva_ptx_expect(p, "}");
}

static kva_status parse_operand(ptx_parser *p, ptx_operand *out) {
  *out = (ptx_operand){.line = p->token.line, .column = p->token.column, .slot = PTX_NONE};
  if (kva_ptx_accept(p, "[")) {
    out->kind = PTX_OPERAND_ADDRESS;
    return address_operand(p, out);
  }
  if (kva_ptx_accept(p, "{")) return list_operand(p, out);
  KVA_TRY(simple_operand(p, out));
  if (!kva_ptx_accept(p, "|")) return KVA_OK;
  ptx_operand *second = KVA_NEW(p->arena, ptx_operand);
  out->second = second;
  return simple_operand(p, second);
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

static kva_status parse_guard(ptx_parser *p, uint32_t *guard) {
  *guard = PTX_NONE;
  if (!kva_ptx_accept(p, "@")) return KVA_OK;
  bool negated = kva_ptx_accept(p, "!");
  ptx_operand o;
  KVA_TRY(simple_operand(p, &o));
  if (o.kind != PTX_OPERAND_REG || o.type != PTX_PRED)
    return kva_ptx_error_at(p->module, p->diag, KVA_INVALID, o.line, o.column, "a guard must be a predicate register");
  *guard = o.slot * 2 + negated;
  return KVA_OK;
}

/* Splits "ld.global.v2.f32" into its parts. */
static kva_status split_mnemonic(ptx_parser *p, const ptx_token *t, ptx_statement *s) {
  s->text = kva_arena_strndup(p->arena, t->text, t->n);
  char *rest = kva_arena_strndup(p->arena, t->text, t->n);
  s->base = rest;
  while ((rest = strchr(rest, '.'))) {
    *rest++ = 0;
    if (s->n_mods == PTX_MAX_MODS)
      return kva_ptx_error_at(p->module, p->diag, KVA_UNSUPPORTED, s->line, s->column, "unsupported instruction '%s'",
                              s->text);
    s->mods[s->n_mods++] = rest;
  }
  if (kva_ptx_knows(s->base)) return KVA_OK;
  return kva_ptx_error_at(p->module, p->diag, KVA_UNSUPPORTED, s->line, s->column, "unsupported instruction '%s'",
                          s->text);
}

static kva_status parse_instruction(ptx_parser *p, const ptx_token *mnemonic, uint32_t guard) {
  ptx_statement s = {.guard = guard, .line = mnemonic->line, .column = mnemonic->column, .source_line = p->source_line};
  KVA_TRY(split_mnemonic(p, mnemonic, &s));
  if (!kva_ptx_is(p, ";")) {
    do {
      if (s.n_operands == PTX_MAX_OPERANDS) return PTX_PARSE_ERROR(p, "more than %d operands", PTX_MAX_OPERANDS);
      KVA_TRY(parse_operand(p, &s.operands[s.n_operands++]));
    } while (kva_ptx_accept(p, ","));
  }
  KVA_TRY(kva_ptx_expect(p, ";"));
  kva_ptx_kernel *k = p->builder.kernel;
  if (k->reg_bytes > PTX_MAX_SLOTS * 128u)
    return PTX_PARSE_ERROR(p, "the kernel uses more than %d registers", PTX_MAX_SLOTS);
  return kva_ptx_decode(&p->builder, &s);
}

/* name: .branchtargets a, b; is stored under its label for brx.idx. */
static kva_status parse_branch_targets(ptx_parser *p, const char *name) {
  KVA_VEC(const char *) names = {0};
  do {
    if (p->token.kind != PTX_TOKEN_WORD) return kva_ptx_unexpected(p, "a label");
    KVA_PUSH(p->arena, &names, (const char *)kva_arena_strndup(p->arena, p->token.text, p->token.n));
    kva_ptx_advance(p);
  } while (kva_ptx_accept(p, ","));
  ptx_branch_targets *list = KVA_NEW(p->arena, ptx_branch_targets);
  *list = (ptx_branch_targets){names.data, names.len};
  kva_map_set_str(p->builder.tables, name, list);
  return kva_ptx_expect(p, ";");
}

static kva_status parse_label(ptx_parser *p, const ptx_token *t) {
  const char *name = kva_arena_strndup(p->arena, t->text, t->n);
  kva_ptx_advance(p);
  if (kva_ptx_accept(p, ".branchtargets")) return parse_branch_targets(p, name);
  if (kva_map_get_str(p->labels, name))
    return kva_ptx_error_at(p->module, p->diag, KVA_INVALID, t->line, t->column, "label '%.100s' is defined twice",
                            name);
  kva_map_set_str(p->labels, name, (void *)(uintptr_t)(p->builder.ins.len + 1));
  return KVA_OK;
}

static kva_status parse_scope(ptx_parser *p);

/* .loc file line column: findings report the line. */
static kva_status parse_location(ptx_parser *p) {
  uint32_t line = p->token.line;
  uint64_t file, source = 0;
  kva_ptx_advance(p);
  if (p->token.kind == PTX_TOKEN_INT && p->token.line == line) {
    KVA_TRY(kva_ptx_parse_uint(p, UINT32_MAX, "the number of a file", &file));
    if (p->token.kind == PTX_TOKEN_INT && p->token.line == line)
      KVA_TRY(kva_ptx_parse_uint(p, UINT32_MAX, "the number of a line", &source));
  }
  p->source_line = (uint32_t)source;
  if (p->token.line == line) kva_ptx_skip_line(p);
  return KVA_OK;
}

static kva_status parse_statement(ptx_parser *p) {
  if (kva_ptx_is(p, "{")) return parse_scope(p);
  if (kva_ptx_is(p, ".reg")) return parse_registers(p);
  if (kva_ptx_is(p, ".shared") || kva_ptx_is(p, ".local") || kva_ptx_is(p, ".global") || kva_ptx_is(p, ".const"))
    return kva_ptx_parse_variables(p, false);
  if (kva_ptx_is(p, ".loc")) return parse_location(p);
  if (kva_ptx_is(p, ".file")) {
    kva_ptx_skip_line(p);
    return KVA_OK;
  }
  if (kva_ptx_accept(p, ".pragma")) {
    if (p->token.kind != PTX_TOKEN_STRING) return kva_ptx_unexpected(p, "a string");
    kva_ptx_advance(p);
    return kva_ptx_expect(p, ";");
  }
  uint32_t guard;
  KVA_TRY(parse_guard(p, &guard));
  ptx_token first = p->token;
  if (first.kind != PTX_TOKEN_WORD || first.text[0] == '.' || first.text[0] == '%')
    return kva_ptx_unexpected(p, "an instruction");
  kva_ptx_advance(p);
  if (guard == PTX_NONE && kva_ptx_is(p, ":")) return parse_label(p, &first);
  return parse_instruction(p, &first, guard);
}

static kva_status parse_scope(ptx_parser *p) {
  KVA_TRY(kva_ptx_expect(p, "{"));
  if (p->depth == PTX_MAX_SCOPES) return PTX_PARSE_ERROR(p, "more than %d nested scopes", PTX_MAX_SCOPES);
  ptx_scope scope = {.parent = p->scope};
  p->scope = &scope;
  p->depth++;
  kva_status status = KVA_OK;
  while (status == KVA_OK && !kva_ptx_is(p, "}"))
    status = p->token.kind == PTX_TOKEN_END ? kva_ptx_unexpected(p, "'}'") : parse_statement(p);
  p->depth--;
  p->scope = scope.parent;
  if (status == KVA_OK) kva_ptx_advance(p);
  return status;
}

/* ---- end of a kernel --------------------------------------------------------------------------------------------- */

static kva_status find_label(ptx_parser *p, const ptx_ins *i, const char *name, uint32_t *out) {
  uintptr_t found = (uintptr_t)kva_map_get_str(p->labels, name);
  if (!found)
    return kva_ptx_error_at(p->module, p->diag, KVA_INVALID, i->line, 1, "label '%.100s' is not defined", name);
  *out = (uint32_t)(found - 1);
  return KVA_OK;
}

static kva_status resolve_branch(ptx_parser *p, ptx_ins *i, const char *name) {
  if (i->op == PTX_OP_BRANCH) return find_label(p, i, name, &i->target);
  const ptx_branch_targets *list = kva_map_get_str(p->builder.tables, name);
  if (!list)
    return kva_ptx_error_at(p->module, p->diag, KVA_INVALID, i->line, 1, "'%.100s' is no list of .branchtargets", name);
  i->list = KVA_NEW_ARRAY(p->arena, uint32_t, list->n);
  i->imm = list->n;
  for (uint32_t k = 0; k < list->n; k++) KVA_TRY(find_label(p, i, list->names[k], &i->list[k]));
  return KVA_OK;
}

/* Dynamic shared memory begins after the static part, if there is one, aligned to 128 bytes or to its own alignment. */
static void relocate(ptx_builder *b) {
  kva_ptx_kernel *k = b->kernel;
  uint32_t align = k->dynamic_align > 128 ? k->dynamic_align : 128;
  if (k->shared_bytes) k->shared_bytes = (k->shared_bytes + align - 1) & ~(align - 1);
  for (uint32_t i = 0; i < k->constants.len; i++)
    if (k->constants.data[i].relocate) k->constants.data[i].bits += k->shared_bytes;
  for (uint32_t i = 0; i < k->n_ins; i++) {
    if (k->ins[i].relocate) k->ins[i].imm = (int64_t)((uint64_t)k->ins[i].imm + k->shared_bytes);
    if (k->ins[i].relocate2) k->ins[i].imm2 = (int64_t)((uint64_t)k->ins[i].imm2 + k->shared_bytes);
  }
}

/* The kernel's narrowest access to a space, at most `narrowest` bytes, as log2. */
static uint32_t shadow_shift(const kva_ptx_kernel *k, ptx_space space, uint32_t narrowest) {
  for (uint32_t i = 0; i < k->n_ins; i++) {
    const ptx_ins *ins = &k->ins[i];
    uint32_t size = ins->class == KVA_PTX_CLASS_ASYNC ? ins->bytes : (uint32_t)ins->bytes * ins->n;
    bool cluster = space == PTX_SHARED && ins->space == PTX_CLUSTER;
    bool there = ins->space == space || ins->space == PTX_GENERIC || cluster;
    bool access = ins->class == KVA_PTX_CLASS_GLOBAL || ins->class == KVA_PTX_CLASS_SHARED ||
                  ins->class == KVA_PTX_CLASS_ATOMIC || ins->class == KVA_PTX_CLASS_ASYNC;
    if (there && access && size && size < narrowest) narrowest = size;
  }
  return (uint32_t)__builtin_ctz(narrowest);
}

static kva_status finish_kernel(ptx_parser *p) {
  ptx_builder *b = &p->builder;
  ptx_statement end = {.text = "ret", .base = "ret", .guard = PTX_NONE, .line = p->token.line, .column = 1};
  KVA_TRY(kva_ptx_decode(b, &end));
  kva_ptx_kernel *k = b->kernel;
  k->ins = b->ins.data;
  k->n_ins = b->ins.len;
  for (uint32_t i = 0; i < k->n_ins; i++)
    if (b->targets.data[i]) KVA_TRY(resolve_branch(p, &k->ins[i], b->targets.data[i]));
  relocate(b);
  k->info.static_shared = k->shared_bytes;
  k->info.local = k->local_bytes;
  k->info.n_instructions = k->n_ins;
  k->shadow_shift = shadow_shift(k, PTX_SHARED, 16);
  k->global_shift = shadow_shift(k, PTX_GLOBAL, 4);
  kva_ptx_build_cfg(k, p->arena);
  return KVA_OK;
}

kva_status kva_ptx_parse_body(ptx_parser *p) {
  p->labels = kva_map_create(p->arena);
  p->n_registers = 0;
  p->source_line = 0;
  p->builder.constants = kva_map_create(p->arena);
  p->builder.tables = kva_map_create(p->arena);
  p->builder.kernel->n_preds = PTX_FIRST_PREDICATE;
  for (int i = 0; i < PTX_N_SPECIALS; i++) p->builder.kernel->special_slot[i] = PTX_NONE;
  KVA_TRY(parse_scope(p));
  return finish_kernel(p);
}
