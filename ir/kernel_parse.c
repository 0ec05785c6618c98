/* Reads the text that kernel_print.c writes and describes. Recursive descent over tokens; after the first error every
 * token reads as END, so all loops stop. Nothing is folded or moved: the kernel holds what the text says, except that
 * constants become instructions at its start. */
#include "ir/dialect.h"
#include "ir/kernel_parse.h"

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static kva_kbuf *parse_buffer_name(kva_kparser *p) {
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "the name of a buffer");
  kva_kbuf *buf = kva_map_get_str(p->bufs, t.text);
  if (!buf && !p->lex.failed) kva_klex_error_at(&p->lex, t, "no buffer is called '%s'", t.text);
  return buf;
}

static void parse_place(kva_kparser *p, kva_kinstr *i) {
  i->buf = parse_buffer_name(p);
  i->index = kva_kparse_bracketed(p);
}

static void add_arg(kva_kinstr *i, kva_kval v) {
  i->args[i->n_args++] = v;
}

static void parse_predicate(kva_kparser *p, kva_kinstr *i) {
  if (kva_klex_accept_name(&p->lex, "where")) add_arg(i, kva_kparse_value(p, KVA_BOOL));
}

static void parse_arith(kva_kparser *p, kva_kinstr *i) {
  kva_koperand operands[3] = {{0}};
  uint32_t n = kva_kop_arity(i->op), first = i->op == KVA_K_select;
  for (uint32_t a = 0; a < n; a++) {
    if (a) kva_klex_expect(&p->lex, ",");
    operands[a] = kva_kparse_operand(p);
  }
  kva_klex_expect(&p->lex, ":");
  kva_dtype t = kva_kparse_dtype(p);
  for (uint32_t a = 0; a < n; a++) add_arg(i, kva_kparse_typed(p, &operands[a], a < first ? KVA_BOOL : t));
  i->dtype = kva_kop_result_type(i->op, t);
}

static void parse_conversion(kva_kparser *p, kva_kinstr *i) {
  kva_koperand o = kva_kparse_operand(p);
  kva_klex_expect(&p->lex, ":");
  add_arg(i, kva_kparse_typed(p, &o, kva_kparse_dtype(p)));
  kva_klex_expect(&p->lex, "->");
  i->dtype = kva_kparse_dtype(p);
}

static void parse_narrow(kva_kparser *p, kva_kinstr *i) {
  kva_koperand o = kva_kparse_operand(p);
  kva_klex_expect(&p->lex, ":");
  i->imm.i = kva_kparse_dtype(p);
  i->dtype = kva_k_compute_type((kva_dtype)i->imm.i);
  add_arg(i, kva_kparse_typed(p, &o, i->dtype));
}

static kva_kloop *parse_loop_name(kva_kparser *p) {
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "the name of a loop");
  kva_kloop *l = kva_map_get_str(p->loops, t.text);
  if (!l && !p->lex.failed) kva_klex_error_at(&p->lex, t, "no loop above is called '%s'", t.text);
  return l;
}

static void parse_loop_value(kva_kparser *p, kva_kinstr *i) {
  i->loop = parse_loop_name(p);
  kva_klex_expect(&p->lex, "[");
  kva_ktoken at = p->lex.token;
  i->carry = kva_kparse_uint(p, "the number of a carry");
  kva_klex_expect(&p->lex, "]");
  if (p->lex.failed) return;
  if (i->carry >= i->loop->carries.len) {
    kva_klex_error_at(&p->lex, at, "the loop has %u carries, found number %u", i->loop->carries.len, i->carry);
    return;
  }
  i->dtype = i->loop->carries.data[i->carry].dtype;
}

static void parse_ahead(kva_kparser *p, kva_kinstr *i) {
  if (kva_klex_accept_name(&p->lex, "ahead")) i->imm.i = kva_kparse_uint(p, "a number of bytes");
}

static void parse_operands(kva_kparser *p, kva_kinstr *i) {
  switch (i->op) {
  case KVA_K_INDEX:
    i->index = kva_kparse_expr(p);
    i->dtype = KVA_I64;
    return;
  case KVA_K_CONVERT:
  case KVA_K_BITCAST: parse_conversion(p, i); return;
  case KVA_K_NARROW: parse_narrow(p, i); return;
  case KVA_K_LOAD:
    parse_place(p, i);
    if (!p->lex.failed) i->dtype = kva_k_compute_type(i->buf->dtype);
    parse_ahead(p, i);
    parse_predicate(p, i);
    return;
  case KVA_K_REDUCE:
  case KVA_K_CARRY: parse_loop_value(p, i); return;
  default: parse_arith(p, i);
  }
}

/* ---- intrinsics -------------------------------------------------------------------------------------------------- */

static void parse_indices(kva_kparser *p, const kva_expr **at, const kva_expr **end) {
  while (at < end && kva_klex_accept(&p->lex, ",")) *at++ = kva_kparse_expr(p);
}

static kva_kinstr *parse_intrinsic(kva_kparser *p, kva_intrinsic_id op) {
  const kva_intrinsic_info *info = kva_intrinsic_get(op);
  kva_kinstr *i = kva_k_instr_create(p->k, KVA_K_INTRINSIC, info->type);
  kva_kintrinsic *m = i->intrinsic = KVA_NEW(p->k->arena, kva_kintrinsic);
  kva_kplace *place = m->places;
  const kva_expr **index = m->indices;
  int32_t *n = m->numbers;
  m->op = op;
  for (const char *kind = info->operands, *first = kind; *kind && !p->lex.failed; kind++) {
    if (kind != first && *kind != '+') kva_klex_expect(&p->lex, ",");
    if (kva_is_place(*kind)) {
      place->buf = parse_buffer_name(p);
      place++->index = kva_kparse_bracketed(p);
    }
    if (*kind == 'e' || *kind == '+') {
      bool more = *kind == '+' ? kva_klex_accept(&p->lex, ",") : true;
      if (more) *index++ = kva_kparse_expr(p);
      if (*kind == '+') parse_indices(p, index, m->indices + KVA_K_MAX_INDICES);
    }
    if (*kind == 'i') *n++ = (int32_t)kva_kparse_uint(p, "a number");
    if (*kind == 'v') add_arg(i, kva_kparse_value(p, KVA_F32));
  }
  return i;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* An opcode that may follow "%n = ". */
static bool find_value_op(const char *name, kva_kop *out_op) {
  for (int op = 0; op < KVA_K_INTRINSIC; op++) {
    bool makes_value = op != KVA_K_CONST && op != KVA_K_STORE && op != KVA_K_LOOP && op < KVA_K_IF;
    if (!makes_value || strcmp(kva_kop_name((kva_kop)op), name) != 0) continue;
    *out_op = (kva_kop)op;
    return true;
  }
  return false;
}

static void parse_value_line(kva_kparser *p, kva_kregion *r) {
  kva_ktoken at = p->lex.token;
  kva_klex_expect(&p->lex, "%");
  uint32_t number = kva_kparse_uint(p, "the number of a value");
  if (kva_map_get(p->values, &number, sizeof number))
    kva_klex_error_at(&p->lex, at, "value %%%u is defined twice", number);
  kva_klex_expect(&p->lex, "=");
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "an instruction");
  kva_kop op = KVA_K_CONST;
  kva_intrinsic_id id;
  bool is_op = !p->lex.failed && find_value_op(t.text, &op);
  if (!p->lex.failed && !is_op && !kva_intrinsic_find(t.text, true, &id)) {
    kva_klex_error_at(&p->lex, t, "no instruction '%s' makes a value", t.text);
  }
  if (p->lex.failed) return;
  kva_kinstr *i = is_op ? kva_k_instr_create(p->k, op, KVA_DTYPE_NONE) : parse_intrinsic(p, id);
  if (is_op) parse_operands(p, i);
  kva_k_insert(r, NULL, i);
  kva_map_set(p->values, &number, sizeof number, i);
}

static void parse_store(kva_kparser *p, kva_kregion *r) {
  kva_kinstr *i = kva_k_instr_create(p->k, KVA_K_STORE, KVA_DTYPE_NONE);
  parse_place(p, i);
  parse_ahead(p, i);
  kva_klex_expect(&p->lex, ",");
  if (p->lex.failed) return;
  add_arg(i, kva_kparse_value(p, kva_k_compute_type(i->buf->dtype)));
  parse_predicate(p, i);
  kva_k_insert(r, NULL, i);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void parse_block(kva_kparser *p, kva_kregion *r, kva_kloop *l);

static void parse_if(kva_kparser *p, kva_kregion *r) {
  kva_kinstr *i = kva_k_instr_create(p->k, KVA_K_IF, KVA_DTYPE_NONE);
  add_arg(i, kva_kparse_value(p, KVA_BOOL));
  i->then = kva_k_region_create(p->k, i);
  i->orelse = kva_k_region_create(p->k, i);
  kva_k_insert(r, NULL, i);
  parse_block(p, i->then, NULL);
  if (kva_klex_accept_name(&p->lex, "else")) parse_block(p, i->orelse, NULL);
}

static kva_combine parse_combine(kva_kparser *p) {
  for (int c = KVA_COMBINE_NONE; c <= KVA_COMBINE_OR; c++) {
    if (kva_klex_accept_name(&p->lex, kva_combine_name((kva_combine)c))) return (kva_combine)c;
  }
  kva_klex_error(&p->lex, "expected a combination such as add, found '%s'", p->lex.token.text);
  return KVA_COMBINE_NONE;
}

static void parse_carries(kva_kparser *p, kva_kloop *l) {
  if (!kva_klex_accept_name(&p->lex, "carry")) return;
  kva_klex_expect(&p->lex, "(");
  do {
    kva_kcarry c = {.combine = parse_combine(p)};
    c.dtype = kva_kparse_dtype(p);
    c.init = kva_kparse_value(p, c.dtype);
    KVA_PUSH(p->k->arena, &l->carries, c);
  } while (kva_klex_accept(&p->lex, ","));
  kva_klex_expect(&p->lex, ")");
}

/* A word and its number; 0 if the word does not follow. */
static uint32_t parse_count(kva_kparser *p, const char *word) {
  return kva_klex_accept_name(&p->lex, word) ? kva_kparse_uint(p, "a number of threads, blocks or iterations") : 0;
}

static void parse_loop(kva_kparser *p, kva_kregion *r, kva_kloop_kind kind) {
  bool strict = kva_klex_accept_name(&p->lex, "strict");
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "the name of the loop variable");
  kva_klex_expect(&p->lex, "<");
  const kva_expr *extent = kva_kparse_expr(p);
  if (p->lex.failed) return;
  if (kva_map_get_str(p->loops, t.text) || kva_map_get_str(p->shape_symbols, t.text) ||
      kva_kparse_is_function(t.text)) {
    kva_klex_error_at(&p->lex, t, "'%s' already means something else", t.text);
    return;
  }
  kva_kloop *l = kva_k_loop_create(p->k, kind, extent, t.text);
  l->strict_order = strict;
  parse_carries(p, l);
  l->subgroup = parse_count(p, "subgroup");
  l->stage = kva_klex_accept_name(&p->lex, "stage");
  l->width = parse_count(p, "width");
  l->blocks = parse_count(p, "blocks");
  if (kva_klex_accept_name(&p->lex, "peel")) l->peel = kva_kparse_expr(p);
  kva_map_set_str(p->loops, t.text, l);
  kva_k_insert(r, NULL, l->instr);
  parse_block(p, l->body, l);
}

static void parse_yields(kva_kparser *p, kva_kloop *l) {
  if (!l || !l->carries.len) return;
  if (!kva_klex_accept_name(&p->lex, "yield")) {
    kva_klex_error(&p->lex, "expected 'yield' with the %u carried values, found '%s'", l->carries.len,
                   p->lex.token.text);
    return;
  }
  for (uint32_t c = 0; c < l->carries.len; c++) {
    if (c) kva_klex_expect(&p->lex, ",");
    l->carries.data[c].yield = kva_kparse_value(p, l->carries.data[c].dtype);
  }
}

static bool parse_intrinsic_effect(kva_kparser *p, kva_kregion *r) {
  kva_intrinsic_id op;
  if (p->lex.token.kind != KVA_KT_NAME || !kva_intrinsic_find(p->lex.token.text, false, &op)) return false;
  kva_klex_next(&p->lex);
  kva_k_insert(r, NULL, parse_intrinsic(p, op));
  return true;
}

static void parse_effect(kva_kparser *p, kva_kregion *r) {
  for (int kind = KVA_K_PARALLEL; kind <= KVA_K_THREAD; kind++) {
    if (!kva_klex_accept_name(&p->lex, kva_kloop_kind_name((kva_kloop_kind)kind))) continue;
    parse_loop(p, r, (kva_kloop_kind)kind);
    return;
  }
  if (kva_klex_accept_name(&p->lex, "store")) {
    parse_store(p, r);
  } else if (kva_klex_accept_name(&p->lex, "if")) {
    parse_if(p, r);
  } else if (kva_klex_accept_name(&p->lex, "barrier")) {
    kva_k_insert(r, NULL, kva_k_instr_create(p->k, KVA_K_BARRIER, KVA_DTYPE_NONE));
  } else if (!parse_intrinsic_effect(p, r)) {
    kva_klex_error(&p->lex, "expected an instruction, found '%s'", p->lex.token.text);
  }
}

static void parse_lines(kva_kparser *p, kva_kregion *r) {
  while (!p->lex.failed && !kva_klex_is(&p->lex, "}") && !kva_klex_is_name(&p->lex, "yield")) {
    if (kva_klex_is(&p->lex, "%"))
      parse_value_line(p, r);
    else
      parse_effect(p, r);
  }
}

static void parse_block(kva_kparser *p, kva_kregion *r, kva_kloop *l) {
  kva_klex_expect(&p->lex, "{");
  if (!kva_kparse_enter(p)) return;
  parse_lines(p, r);
  parse_yields(p, l);
  p->nesting--;
  kva_klex_expect(&p->lex, "}");
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static void parse_access(kva_kparser *p, kva_kbuf *buf) {
  bool both = kva_klex_accept_name(&p->lex, "readwrite");
  buf->read = both || kva_klex_accept_name(&p->lex, "read");
  buf->written = both || kva_klex_accept_name(&p->lex, "write");
  if (buf->read || buf->written || kva_klex_accept_name(&p->lex, "unused")) return;
  kva_klex_error(&p->lex, "expected read, write, readwrite or unused, found '%s'", p->lex.token.text);
}

static void parse_buffer(kva_kparser *p, kva_kspace space) {
  kva_kbuf *buf = KVA_NEW(p->k->arena, kva_kbuf);
  buf->space = space;
  buf->id = p->k->bufs.len;
  parse_access(p, buf);
  buf->dtype = kva_kparse_dtype(p);
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "the name of a buffer");
  buf->name = kva_arena_strdup(p->k->arena, t.text);
  buf->extent = kva_kparse_bracketed(p);
  if (kva_map_get_str(p->bufs, buf->name)) kva_klex_error_at(&p->lex, t, "two buffers are called '%s'", buf->name);
  kva_map_set_str(p->bufs, buf->name, buf);
  KVA_PUSH(p->k->arena, &p->k->bufs, buf);
}

static void parse_locals(kva_kparser *p) {
  while (!p->lex.failed) {
    bool shared = kva_klex_accept_name(&p->lex, "shared");
    if (!shared && !kva_klex_accept_name(&p->lex, "local")) return;
    parse_buffer(p, shared ? KVA_K_SHARED : KVA_K_LOCAL);
    if (shared && kva_klex_accept_name(&p->lex, "over"))
      p->k->bufs.data[p->k->bufs.len - 1]->over = parse_buffer_name(p);
  }
}

/* "word(x, y, ...)", n of them. */
static void parse_list(kva_kparser *p, const char *word, uint32_t n, const kva_expr **out) {
  if (!kva_klex_accept_name(&p->lex, word)) kva_klex_error(&p->lex, "expected '%s'", word);
  for (uint32_t i = 0; i < n && !p->lex.failed; i++) {
    kva_klex_expect(&p->lex, i ? "," : "(");
    out[i] = kva_kparse_expr(p);
  }
  kva_klex_expect(&p->lex, ")");
}

static void parse_dims(kva_kparser *p, kva_ktensor_map *m) {
  if (!kva_klex_accept_name(&p->lex, "dims")) kva_klex_error(&p->lex, "expected 'dims'");
  kva_klex_expect(&p->lex, "(");
  do m->dims[m->rank++] = kva_kparse_expr(p);
  while (m->rank < KVA_K_TENSOR_MAP_RANK && kva_klex_accept(&p->lex, ","));
  kva_klex_expect(&p->lex, ")");
}

static void parse_map(kva_kparser *p) {
  kva_ktensor_map m = {.buf = parse_buffer_name(p)};
  const kva_expr *box[KVA_K_TENSOR_MAP_RANK] = {NULL};
  parse_dims(p, &m);
  if (m.rank > 1) parse_list(p, "steps", m.rank - 1, m.strides + 1);
  parse_list(p, "box", m.rank, box);
  for (uint32_t d = 0; d < m.rank && !p->lex.failed; d++) {
    int64_t v = 0;
    if (!kva_expr_is_const(box[d], &v) || v < 1 || v > 256) kva_klex_error(&p->lex, "a box has 1 to 256 elements");
    m.box[d] = (int32_t)v;
  }
  m.swizzle = (int32_t)parse_count(p, "swizzle");
  KVA_PUSH(p->k->arena, &p->k->maps, m);
}

static void parse_kernel(kva_kparser *p, kva_arena *arena, kva_expr_ctx *exprs) {
  if (!kva_klex_accept_name(&p->lex, "kernel"))
    kva_klex_error(&p->lex, "expected 'kernel', found '%s'", p->lex.token.text);
  p->k = kva_kernel_create(arena, exprs, p->lex.token.text);
  kva_klex_expect_name(&p->lex, "the kernel's name");
  kva_klex_expect(&p->lex, "(");
  if (!kva_klex_is(&p->lex, ")")) {
    do parse_buffer(p, KVA_K_PARAM);
    while (kva_klex_accept(&p->lex, ","));
  }
  kva_klex_expect(&p->lex, ")");
  p->k->threads = parse_count(p, "threads");
  p->k->blocks = parse_count(p, "blocks");
  kva_klex_expect(&p->lex, "{");
  while (kva_klex_accept_name(&p->lex, "tensor_map")) parse_map(p);
  parse_locals(p);
  parse_lines(p, p->k->body);
  kva_klex_expect(&p->lex, "}");
  if (!p->lex.failed && p->lex.token.kind != KVA_KT_END) kva_klex_error(&p->lex, "text after the kernel's end");
}

kva_kernel *kva_kernel_parse(kva_arena *arena, kva_expr_ctx *exprs, const char *text, const char *file,
                             kva_diag *diag) {
  kva_kparser p = {.scratch = kva_arena_create()};
  p.values = kva_map_create(p.scratch);
  p.loops = kva_map_create(p.scratch);
  p.shape_symbols = kva_map_create(p.scratch);
  p.value_symbols = kva_map_create(p.scratch);
  p.constants = kva_map_create(p.scratch);
  p.bufs = kva_map_create(p.scratch);
  kva_klex_start(&p.lex, p.scratch, text, file, diag);
  parse_kernel(&p, arena, exprs);
  bool ok = !p.lex.failed && kva_kernel_verify(p.k, diag) == KVA_OK;
  kva_arena_destroy(p.scratch);
  return ok ? p.k : NULL;
}
