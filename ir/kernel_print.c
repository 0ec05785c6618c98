/* Text of kernels, which kernel_parse.c reads back:
 *
 *   kernel "row_sum" (read float x[B*N], write float y[B]) {
 *     local readwrite float t[4]
 *     grid g < B {
 *       serial strict k < N carry (add float 0.0, none int64 %1) {
 *         %2 = load x[N*g + k] where %0
 *         %3 = max %2, 0.0 : float
 *         %4 = carry k[1]
 *         yield %3, %4
 *       }
 *       %5 = reduce k[0]
 *       store y[g], %5
 *       if %6 { ... } else { ... }
 *     }
 *   }
 *
 * A kernel may have instructions of dialects (ir/dialect.h), and tensor maps before its buffers; a shared buffer may
 * alias an earlier one:
 *
 *   tensor_map a dims(K, M) steps(2*K) box(64, 128) swizzle 128
 *   shared readwrite float staged[2048] over ring
 *   copy_async ring[8*tid], a[K*i + 8*tid], 16
 *
 * For a GPU ` threads 256 blocks 2` follows the parameters, and thread loops may end in ` subgroup 32 stage` or in
 * ` width 4 blocks 2 peel mod(r, 32)`.
 *
 * Constants are written inline, so they have no line of their own. The type after the colon is that of the operands
 * (`lt %1, 0.0 : float` gives a bool); `convert` and `bitcast` name both types; `narrow`
 * names the storage type. `%5` in an index is the value %5.
 * Printing renumbers values, sorts terms and makes loop variables unique, so the text does not depend on ids. */
#include "ir/dialect.h"

#include <ctype.h>
#include <stdlib.h>

typedef struct printer {
  const kva_kernel *k;
  kva_text *out;
  kva_arena *scratch;
  uint32_t *numbers; /* by id: the n of a value's %n */
  uint32_t next_number;
  kva_map *symbols; /* symbol -> text */
  kva_map *taken;   /* names of symbols in use */
  int depth;
} printer;

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool is_plain_name(const char *s) {
  static const char *const functions[] = {"floordiv", "mod", "min", "max"};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    if (!strcmp(s, functions[i])) return false;
  }
  if (!isalpha((unsigned char)*s) && *s != '_') return false;
  for (; *s; s++) {
    if (!isalnum((unsigned char)*s) && *s != '_' && *s != '.') return false;
  }
  return true;
}

static void print_name(kva_text *out, const char *name) {
  if (is_plain_name(name)) kva_text_add(out, "%s", name);
  if (!is_plain_name(name)) kva_text_add_quoted(out, name);
}

static const char *symbol_text(const printer *p, const kva_expr *symbol) {
  return kva_map_get(p->symbols, &symbol, sizeof symbol);
}

static void set_symbol_text(printer *p, const kva_expr *symbol, const char *text) {
  kva_map_set(p->symbols, &symbol, sizeof symbol, (void *)text);
}

static void name_value(void *user, kva_kinstr *i) {
  printer *p = user;
  if (i->dtype != KVA_DTYPE_NONE && i->op != KVA_K_CONST) p->numbers[i->id] = p->next_number++;
}

static void name_value_symbols(printer *p) {
  for (uint32_t i = 0; i < p->k->values.len; i++) {
    uint32_t number = p->numbers[p->k->values.data[i]->id];
    set_symbol_text(p, p->k->value_symbols.data[i], kva_arena_printf(p->scratch, "%%%u", number));
  }
}

static void name_loop(void *user, kva_kinstr *i) {
  printer *p = user;
  if (i->op != KVA_K_LOOP) return;
  const char *base = is_plain_name(i->loop->var->name) ? i->loop->var->name : "i", *name = base;
  for (int n = 2; kva_map_get_str(p->taken, name); n++) name = kva_arena_printf(p->scratch, "%s_%d", base, n);
  kva_map_set_str(p->taken, name, p);
  set_symbol_text(p, i->loop->var, name);
}

/* Symbols without a text yet are loop variables or shape symbols; the latter keep their names. */
static void name_shape_symbol(void *user, const kva_expr *symbol) {
  printer *p = user;
  if (symbol_text(p, symbol)) return;
  kva_text text = {0};
  print_name(&text, symbol->name);
  set_symbol_text(p, symbol, kva_arena_strdup(p->scratch, text.data));
  kva_map_set_str(p->taken, symbol->name, p);
  kva_text_free(&text);
}

static void name_index(void *user, const kva_expr **e) {
  kva_expr_each_symbol(*e, name_shape_symbol, user);
}

static void name_symbols_of(void *user, kva_kinstr *i) {
  kva_k_each_index(i, name_index, user);
}

static void name_symbols_of_map(printer *p, const kva_ktensor_map *m) {
  for (uint32_t d = 0; d < m->rank; d++) {
    kva_expr_each_symbol(m->dims[d], name_shape_symbol, p);
    if (d) kva_expr_each_symbol(m->strides[d], name_shape_symbol, p);
  }
}

static void name_everything(printer *p) {
  kva_k_each_instr(p->k, name_value, p);
  name_value_symbols(p);
  for (uint32_t i = 0; i < p->k->loops.len; i++) set_symbol_text(p, p->k->loops.data[i]->var, "");
  for (uint32_t i = 0; i < p->k->bufs.len; i++) {
    kva_expr_each_symbol(p->k->bufs.data[i]->extent, name_shape_symbol, p);
  }
  for (uint32_t i = 0; i < p->k->maps.len; i++) name_symbols_of_map(p, &p->k->maps.data[i]);
  kva_k_each_instr(p->k, name_symbols_of, p);
  kva_k_each_instr(p->k, name_loop, p);
}

/* ---- expressions: sorted by text, not by id ---------------------------------------------------------------------- */

typedef struct term_text {
  const char *text;
  int64_t coefficient;
} term_text;

static const char *expr_text(printer *p, const kva_expr *e);

static int compare_texts(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int compare_terms(const void *a, const void *b) {
  return strcmp(((const term_text *)a)->text, ((const term_text *)b)->text);
}

static const char *take_text(printer *p, kva_text *text) {
  const char *copy = kva_arena_strndup(p->scratch, text->data ? text->data : "", text->len);
  kva_text_free(text);
  return copy;
}

static const char *factors_text(printer *p, const kva_expr_term *t) {
  const char **factors = KVA_NEW_ARRAY(p->scratch, const char *, t->n_factors);
  for (uint32_t i = 0; i < t->n_factors; i++) factors[i] = expr_text(p, t->factors[i]);
  qsort(factors, t->n_factors, sizeof *factors, compare_texts);
  kva_text text = {0};
  for (uint32_t i = 0; i < t->n_factors; i++) kva_text_add(&text, "%s%s", i ? "*" : "", factors[i]);
  return take_text(p, &text);
}

static void add_signed(kva_text *text, bool first, int64_t v, const char *factors) {
  uint64_t magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
  kva_text_add(text, "%s", v < 0 ? (first ? "-" : " - ") : (first ? "" : " + "));
  if (!factors) kva_text_add(text, "%llu", (unsigned long long)magnitude);
  if (factors && magnitude != 1) kva_text_add(text, "%llu*", (unsigned long long)magnitude);
  if (factors) kva_text_add(text, "%s", factors);
}

static const char *sum_text(printer *p, const kva_expr *e) {
  term_text *terms = KVA_NEW_ARRAY(p->scratch, term_text, e->n_terms + 1);
  for (uint32_t i = 0; i < e->n_terms; i++) {
    terms[i] = (term_text){factors_text(p, &e->terms[i]), e->terms[i].coefficient};
  }
  qsort(terms, e->n_terms, sizeof *terms, compare_terms);
  kva_text text = {0};
  for (uint32_t i = 0; i < e->n_terms; i++) add_signed(&text, !i, terms[i].coefficient, terms[i].text);
  if (e->constant || !e->n_terms) add_signed(&text, !e->n_terms, e->constant, NULL);
  return take_text(p, &text);
}

static const char *function_text(printer *p, const char *name, const char *a, const char *b, bool symmetric) {
  bool swap = symmetric && strcmp(a, b) > 0;
  return kva_arena_printf(p->scratch, "%s(%s, %s)", name, swap ? b : a, swap ? a : b);
}

static const char *expr_text(printer *p, const kva_expr *e) {
  switch (e->kind) {
  case KVA_EXPR_SUM: return sum_text(p, e);
  case KVA_EXPR_SYMBOL: return symbol_text(p, e) ? symbol_text(p, e) : e->name;
  case KVA_EXPR_DIV: return function_text(p, "floordiv", expr_text(p, e->a), expr_text(p, e->b), false);
  case KVA_EXPR_MOD: return function_text(p, "mod", expr_text(p, e->a), expr_text(p, e->b), false);
  case KVA_EXPR_MIN: return function_text(p, "min", expr_text(p, e->a), expr_text(p, e->b), true);
  case KVA_EXPR_MAX: return function_text(p, "max", expr_text(p, e->a), expr_text(p, e->b), true);
  case KVA_EXPR_OVERFLOW: return "overflow";
  }
  return "";
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static void print_const(kva_text *out, const kva_kinstr *c) {
  if (c->dtype == KVA_BOOL) {
    kva_text_add(out, "%s", c->imm.i ? "true" : "false");
  } else if (c->dtype == KVA_F64) {
    kva_text_add_double(out, c->imm.f);
  } else if (kva_dtype_is_float(c->dtype)) {
    kva_text_add_float(out, (float)c->imm.f);
  } else if (c->dtype == KVA_U64) {
    kva_text_add(out, "%llu", (unsigned long long)c->imm.i);
  } else {
    kva_text_add(out, "%lld", (long long)c->imm.i);
  }
}

static void print_value(printer *p, const kva_kinstr *v) {
  if (v->op == KVA_K_CONST) print_const(p->out, v);
  if (v->op != KVA_K_CONST) kva_text_add(p->out, "%%%u", p->numbers[v->id]);
}

static void print_args(printer *p, const kva_kinstr *i) {
  for (uint32_t a = 0; a < i->n_args; a++) {
    kva_text_add(p->out, "%s", a ? ", " : " ");
    print_value(p, i->args[a]);
  }
}

static void print_element(printer *p, const kva_kbuf *buf, const kva_expr *index) {
  print_name(p->out, buf->name);
  kva_text_add(p->out, "[%s]", expr_text(p, index));
}

static void print_place(printer *p, const kva_kinstr *i) {
  kva_text_add(p->out, " ");
  print_element(p, i->buf, i->index);
}

static void print_intrinsic(printer *p, const kva_kinstr *i) {
  const kva_kintrinsic *m = i->intrinsic;
  const kva_intrinsic_info *info = kva_intrinsic_get(m->op);
  const kva_kplace *place = m->places;
  const kva_expr *const *index = m->indices;
  const int32_t *n = m->numbers;
  kva_text_add(p->out, "%s", info->name);
  for (const char *kind = info->operands, *first = kind; *kind; kind++) {
    if (*kind != '+') kva_text_add(p->out, kind == first ? " " : ", ");
    if (kva_is_place(*kind)) {
      print_element(p, place->buf, place->index);
      place++;
    }
    if (*kind == 'e') kva_text_add(p->out, "%s", expr_text(p, *index++));
    if (*kind == 'i') kva_text_add(p->out, "%d", *n++);
    if (*kind == 'v') print_value(p, i->args[0]);
    while (*kind == '+' && index < m->indices + KVA_K_MAX_INDICES && *index)
      kva_text_add(p->out, ", %s", expr_text(p, *index++));
  }
}

static void print_predicate(printer *p, const kva_kinstr *i, uint32_t arg) {
  if (i->n_args <= arg) return;
  kva_text_add(p->out, " where ");
  print_value(p, i->args[arg]);
}

static void print_line(printer *p, const char *text) {
  kva_text_add(p->out, "%*s%s", 2 * p->depth, "", text);
}

static void print_region(printer *p, const kva_kregion *r);

static void print_block(printer *p, const kva_kregion *r, const kva_kloop *l) {
  kva_text_add(p->out, " {\n");
  p->depth++;
  print_region(p, r);
  if (l && l->carries.len) {
    print_line(p, "yield");
    for (uint32_t c = 0; c < l->carries.len; c++) {
      kva_text_add(p->out, "%s", c ? ", " : " ");
      print_value(p, l->carries.data[c].yield);
    }
    kva_text_add(p->out, "\n");
  }
  p->depth--;
  print_line(p, "}");
}

static void print_loop(printer *p, const kva_kloop *l) {
  kva_text_add(p->out, "%s%s %s < %s", kva_kloop_kind_name(l->kind), l->strict_order ? " strict" : "",
               symbol_text(p, l->var), expr_text(p, l->extent));
  for (uint32_t c = 0; c < l->carries.len; c++) {
    const kva_kcarry *carry = &l->carries.data[c];
    kva_text_add(p->out, "%s%s %s ", c ? ", " : " carry (", kva_combine_name(carry->combine),
                 kva_dtype_name(carry->dtype));
    print_value(p, carry->init);
  }
  if (l->carries.len) kva_text_add(p->out, ")");
  if (l->subgroup > 1) kva_text_add(p->out, " subgroup %u", l->subgroup);
  if (l->stage) kva_text_add(p->out, " stage");
  if (l->width > 1) kva_text_add(p->out, " width %u", l->width);
  if (l->blocks > 1) kva_text_add(p->out, " blocks %u", l->blocks);
  if (l->peel) kva_text_add(p->out, " peel %s", expr_text(p, l->peel));
  print_block(p, l->body, l);
}

static void print_if(printer *p, const kva_kinstr *i) {
  kva_text_add(p->out, "if");
  print_args(p, i);
  print_block(p, i->then, NULL);
  if (!i->orelse->first) return;
  kva_text_add(p->out, " else");
  print_block(p, i->orelse, NULL);
}

static void print_arith(printer *p, const kva_kinstr *i) {
  print_args(p, i);
  kva_text_add(p->out, " : %s", kva_dtype_name(i->args[i->op == KVA_K_select]->dtype));
}

static void print_ahead(printer *p, const kva_kinstr *i) {
  if (i->imm.i) kva_text_add(p->out, " ahead %lld", (long long)i->imm.i);
}

static void print_store(printer *p, const kva_kinstr *i) {
  print_place(p, i);
  print_ahead(p, i);
  kva_text_add(p->out, ", ");
  print_value(p, i->args[0]);
  print_predicate(p, i, 1);
}

static void print_operands(printer *p, const kva_kinstr *i) {
  switch (i->op) {
  case KVA_K_INDEX: kva_text_add(p->out, " %s", expr_text(p, i->index)); return;
  case KVA_K_CONVERT:
  case KVA_K_BITCAST:
    print_args(p, i);
    kva_text_add(p->out, " : %s -> %s", kva_dtype_name(i->args[0]->dtype), kva_dtype_name(i->dtype));
    return;
  case KVA_K_NARROW:
    print_args(p, i);
    kva_text_add(p->out, " : %s", kva_dtype_name((kva_dtype)i->imm.i));
    return;
  case KVA_K_LOAD:
    print_place(p, i);
    print_ahead(p, i);
    print_predicate(p, i, 0);
    return;
  case KVA_K_STORE: print_store(p, i); return;
  case KVA_K_REDUCE:
  case KVA_K_CARRY: kva_text_add(p->out, " %s[%u]", symbol_text(p, i->loop->var), i->carry); return;
  case KVA_K_BARRIER: return;
  default: print_arith(p, i);
  }
}

static void print_instr(printer *p, const kva_kinstr *i) {
  print_line(p, "");
  if (i->op == KVA_K_LOOP) {
    print_loop(p, i->loop);
  } else if (i->op == KVA_K_IF) {
    print_if(p, i);
  } else {
    if (i->dtype != KVA_DTYPE_NONE) kva_text_add(p->out, "%%%u = ", p->numbers[i->id]);
    if (i->op == KVA_K_INTRINSIC) {
      print_intrinsic(p, i);
    } else {
      kva_text_add(p->out, "%s", kva_kop_name(i->op));
      print_operands(p, i);
    }
  }
  kva_text_add(p->out, "\n");
}

static void print_region(printer *p, const kva_kregion *r) {
  for (const kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op != KVA_K_CONST) print_instr(p, i);
  }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static void print_buffer(printer *p, const kva_kbuf *buf) {
  static const char *const access[] = {"unused", "read", "write", "readwrite"};
  kva_text_add(p->out, "%s %s ", access[buf->read + 2 * buf->written], kva_dtype_name(buf->dtype));
  print_name(p->out, buf->name);
  kva_text_add(p->out, "[%s]", expr_text(p, buf->extent));
}

static void print_params(printer *p) {
  for (uint32_t i = 0; i < p->k->bufs.len && p->k->bufs.data[i]->space == KVA_K_PARAM; i++) {
    if (i) kva_text_add(p->out, ", ");
    print_buffer(p, p->k->bufs.data[i]);
  }
}

static void print_locals(printer *p) {
  for (uint32_t i = 0; i < p->k->bufs.len; i++) {
    const kva_kbuf *buf = p->k->bufs.data[i];
    if (buf->space == KVA_K_PARAM) continue;
    kva_text_add(p->out, "  %s ", buf->space == KVA_K_LOCAL ? "local" : "shared");
    print_buffer(p, buf);
    if (buf->over) {
      kva_text_add(p->out, " over ");
      print_name(p->out, buf->over->name);
    }
    kva_text_add(p->out, "\n");
  }
}

static void print_map(printer *p, const kva_ktensor_map *m) {
  kva_text_add(p->out, "  tensor_map ");
  print_name(p->out, m->buf->name);
  for (uint32_t d = 0; d < m->rank; d++) kva_text_add(p->out, "%s%s", d ? ", " : " dims(", expr_text(p, m->dims[d]));
  kva_text_add(p->out, ")");
  for (uint32_t d = 1; d < m->rank; d++)
    kva_text_add(p->out, "%s%s", d > 1 ? ", " : " steps(", expr_text(p, m->strides[d]));
  for (uint32_t d = 0; d < m->rank; d++)
    kva_text_add(p->out, "%s%d", d ? ", " : m->rank > 1 ? ") box(" : " box(", m->box[d]);
  kva_text_add(p->out, ") swizzle %d\n", m->swizzle);
}

void kva_kernel_print(const kva_kernel *k, kva_text *out) {
  printer p = {.k = k, .out = out, .scratch = kva_arena_create()};
  p.numbers = KVA_NEW_ARRAY(p.scratch, uint32_t, k->next_id + 1);
  p.symbols = kva_map_create(p.scratch);
  p.taken = kva_map_create(p.scratch);
  name_everything(&p);
  kva_text_add(out, "kernel ");
  kva_text_add_quoted(out, k->name);
  kva_text_add(out, " (");
  print_params(&p);
  kva_text_add(out, ")");
  if (k->threads) kva_text_add(out, " threads %u", k->threads);
  if (k->blocks) kva_text_add(out, " blocks %u", k->blocks);
  kva_text_add(out, " {\n");
  for (uint32_t i = 0; i < k->maps.len; i++) print_map(&p, &k->maps.data[i]);
  print_locals(&p);
  p.depth = 1;
  print_region(&p, k->body);
  kva_text_add(out, "}\n");
  kva_arena_destroy(p.scratch);
}
