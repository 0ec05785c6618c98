/* Encoding of a kernel: a byte string that is the same for equal kernels and for no others. Names of the kernel, of
 * buffers and of variables, ids and the position of constants do not count: buffers count by position, values and loop
 * variables by order of definition, constants by type and bits, shape symbols by name, or by position in a list.
 *
 * Every part is self-delimiting: numbers in groups of 7 bits, low ones first; lists after their length. Terms and
 * factors of an expression are ordered by ids, which differ between equal kernels, so their encodings are sorted.
 *
 * A symbol's range is part of the kernel: generated code uses unsigned division if a range excludes negative numbers. A
 * range may refer to a variable that a rewrite removed from the kernel, which counts by its name and range. */
#include "ir/kernel.h"

#include <stdlib.h>

typedef struct encoder {
  const kva_kernel *k;
  kva_arena *scratch;
  kva_text *out;
  kva_map *numbers; /* instruction or loop variable -> order of definition, from 1 */
  kva_map *values;  /* value symbol -> its instruction */
  uint32_t n_symbols;
  const kva_expr *const *symbols;
  uint32_t next;
} encoder;

static void put(encoder *s, uint64_t v) {
  char bytes[10];
  size_t n = 0;
  for (; v >= 0x80; v >>= 7) bytes[n++] = (char)(v | 0x80);
  bytes[n++] = (char)v;
  kva_text_add_bytes(s->out, bytes, n);
}

static void put_signed(encoder *s, int64_t v) {
  put(s, (uint64_t)v << 1 ^ (uint64_t)(v >> 63));
}

static void put_name(encoder *s, const char *name) {
  put(s, strlen(name));
  kva_text_add_bytes(s->out, name, strlen(name));
}

/* 0: not defined so far. */
static uint64_t number_of(const encoder *s, const void *what) {
  return (uintptr_t)kva_map_get(s->numbers, &what, sizeof what);
}

static void define(encoder *s, const void *what) {
  KVA_ASSERT(!number_of(s, what));
  kva_map_set(s->numbers, &what, sizeof what, (void *)(uintptr_t)++s->next);
}

/* ---- sorting ----------------------------------------------------------------------------------------------------- */

typedef struct part {
  const char *bytes;
  size_t n;
} part;

static int compare_parts(const void *a, const void *b) {
  const part *x = a, *y = b;
  if (x->n != y->n) return x->n < y->n ? -1 : 1;
  return memcmp(x->bytes, y->bytes, x->n);
}

/* Sorts the last n parts of the text: part i begins at starts[i]. */
static void sort_parts(encoder *s, uint32_t n, const size_t *starts) {
  if (n < 2) return;
  size_t first = starts[0], end = s->out->len;
  const char *copy = kva_arena_memdup(s->scratch, s->out->data + first, end - first);
  part *parts = KVA_NEW_ARRAY(s->scratch, part, n);
  for (uint32_t i = 0; i < n; i++)
    parts[i] = (part){copy + (starts[i] - first), (i + 1 < n ? starts[i + 1] : end) - starts[i]};
  qsort(parts, n, sizeof *parts, compare_parts);
  char *to = s->out->data + first;
  for (uint32_t i = 0; i < n; to += parts[i++].n) memcpy(to, parts[i].bytes, parts[i].n);
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

enum { LOOP_VARIABLE = KVA_EXPR_OVERFLOW + 1, VALUE_SYMBOL };

static void put_expr(encoder *s, const kva_expr *e);
static void put_value(encoder *s, const kva_kinstr *v);

static void put_optional(encoder *s, const kva_expr *e) {
  put(s, e != NULL);
  if (e) put_expr(s, e);
}

static void put_range(encoder *s, const kva_expr *symbol) {
  put_signed(s, symbol->lo);
  put_optional(s, symbol->extent);
}

/* A name is not empty, so its length is not 0. */
static void put_shape_symbol(encoder *s, const kva_expr *e) {
  for (uint32_t i = 0; i < s->n_symbols; i++) {
    if (s->symbols[i] != e) continue;
    put(s, 0);
    put(s, i);
    return;
  }
  put_name(s, e->name);
}

static void put_symbol(encoder *s, const kva_expr *e) {
  uint64_t variable = number_of(s, e);
  const kva_kinstr *value = kva_map_get(s->values, &e, sizeof e);
  put(s, variable ? LOOP_VARIABLE : value ? VALUE_SYMBOL : KVA_EXPR_SYMBOL);
  if (variable) {
    put(s, variable);
    return;
  }
  if (value) put_value(s, value);
  if (!value) put_shape_symbol(s, e);
  put_range(s, e);
}

static void put_term(encoder *s, const kva_expr_term *t) {
  size_t *starts = KVA_NEW_ARRAY(s->scratch, size_t, t->n_factors + 1);
  put_signed(s, t->coefficient);
  put(s, t->n_factors);
  for (uint32_t f = 0; f < t->n_factors; f++) {
    starts[f] = s->out->len;
    put_expr(s, t->factors[f]);
  }
  sort_parts(s, t->n_factors, starts);
}

static void put_sum(encoder *s, const kva_expr *e) {
  size_t *starts = KVA_NEW_ARRAY(s->scratch, size_t, e->n_terms + 1);
  put_signed(s, e->constant);
  put(s, e->n_terms);
  for (uint32_t t = 0; t < e->n_terms; t++) {
    starts[t] = s->out->len;
    put_term(s, &e->terms[t]);
  }
  sort_parts(s, e->n_terms, starts);
}

static void put_pair(encoder *s, const kva_expr *e) {
  size_t starts[2];
  starts[0] = s->out->len;
  put_expr(s, e->a);
  starts[1] = s->out->len;
  put_expr(s, e->b);
  if (e->kind == KVA_EXPR_MIN || e->kind == KVA_EXPR_MAX) sort_parts(s, 2, starts);
}

static void put_expr(encoder *s, const kva_expr *e) {
  if (e->kind == KVA_EXPR_SYMBOL) {
    put_symbol(s, e);
    return;
  }
  put(s, e->kind);
  if (e->kind == KVA_EXPR_SUM) put_sum(s, e);
  if (e->kind == KVA_EXPR_DIV || e->kind == KVA_EXPR_MOD || e->kind == KVA_EXPR_MIN || e->kind == KVA_EXPR_MAX)
    put_pair(s, e);
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static void put_value(encoder *s, const kva_kinstr *v) {
  bool is_const = v->op == KVA_K_CONST;
  KVA_ASSERT(is_const || number_of(s, v)); /* operands are defined before */
  put(s, is_const ? 0 : number_of(s, v));
  if (!is_const) return;
  put(s, v->dtype);
  put(s, (uint64_t)v->imm.i);
}

static void put_buffer(encoder *s, const kva_kbuf *buf) {
  KVA_ASSERT(!buf || s->k->bufs.data[buf->id] == buf);
  put(s, buf ? buf->id + 1u : 0);
}

static void put_loop(encoder *s, const kva_kloop *l) {
  put(s, (uint64_t)l->kind << 2 | (uint64_t)l->stage << 1 | l->strict_order);
  put(s, l->subgroup > 1 ? l->subgroup : 1);
  put(s, l->width > 1 ? l->width : 1);
  put(s, l->blocks > 1 ? l->blocks : 1);
  put_optional(s, l->peel);
  put_expr(s, l->extent);
  put_range(s, l->var);
  define(s, l->var);
  put(s, l->carries.len);
  for (uint32_t c = 0; c < l->carries.len; c++) {
    put(s, l->carries.data[c].combine);
    put(s, l->carries.data[c].dtype);
    put_value(s, l->carries.data[c].init);
  }
}

static void put_intrinsic(encoder *s, const kva_kintrinsic *m) {
  put(s, m->op);
  for (uint32_t p = 0; p < KVA_K_MAX_PLACES; p++) {
    put_buffer(s, m->places[p].buf);
    put_optional(s, m->places[p].index);
  }
  for (uint32_t x = 0; x < KVA_K_MAX_INDICES; x++) put_optional(s, m->indices[x]);
  for (uint32_t n = 0; n < KVA_K_MAX_NUMBERS; n++) put_signed(s, m->numbers[n]);
}

static void put_region(encoder *s, const kva_kregion *r);

static void put_body(encoder *s, const kva_kloop *l) {
  put_region(s, l->body);
  for (uint32_t c = 0; c < l->carries.len; c++) put_value(s, l->carries.data[c].yield);
}

static void put_instr(encoder *s, const kva_kinstr *i) {
  put(s, i->op + 1u);
  put(s, i->dtype);
  put(s, i->n_args);
  for (uint32_t a = 0; a < i->n_args; a++) put_value(s, i->args[a]);
  if (i->op == KVA_K_NARROW || i->op == KVA_K_LOAD) put(s, (uint64_t)i->imm.i);
  put_optional(s, i->index);
  put_buffer(s, i->buf);
  if (i->op == KVA_K_REDUCE || i->op == KVA_K_CARRY) {
    put(s, number_of(s, i->loop->var));
    put(s, i->carry);
  }
  if (i->op == KVA_K_INTRINSIC) put_intrinsic(s, i->intrinsic);
  if (i->op == KVA_K_LOOP) put_loop(s, i->loop);
  define(s, i);
  if (i->op == KVA_K_LOOP) put_body(s, i->loop);
  if (i->then) put_region(s, i->then);
  if (i->orelse) put_region(s, i->orelse);
}

static void put_region(encoder *s, const kva_kregion *r) {
  for (const kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op != KVA_K_CONST) put_instr(s, i);
  }
  put(s, 0);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static void put_buffers(encoder *s) {
  put(s, s->k->bufs.len);
  for (uint32_t i = 0; i < s->k->bufs.len; i++) {
    const kva_kbuf *buf = s->k->bufs.data[i];
    put(s, (uint64_t)buf->space << 2 | (uint64_t)buf->read << 1 | buf->written);
    put(s, buf->dtype);
    put_expr(s, buf->extent);
    put_buffer(s, buf->over);
  }
}

static void put_tensor_map(encoder *s, const kva_ktensor_map *m) {
  put_buffer(s, m->buf);
  put(s, m->rank);
  put_signed(s, m->swizzle);
  for (uint32_t d = 0; d < m->rank; d++) {
    put_expr(s, m->dims[d]);
    if (d) put_expr(s, m->strides[d]);
    put_signed(s, m->box[d]);
  }
}

void kva_kernel_encode(const kva_kernel *k, uint32_t n_symbols, const kva_expr *const *symbols, kva_text *out) {
  encoder s = {.k = k, .scratch = kva_arena_create(), .out = out, .n_symbols = n_symbols, .symbols = symbols};
  s.numbers = kva_map_create(s.scratch);
  s.values = kva_map_create(s.scratch);
  for (uint32_t i = 0; i < k->values.len; i++)
    kva_map_set(s.values, &k->value_symbols.data[i], sizeof(const kva_expr *), k->values.data[i]);
  put(&s, k->threads);
  put(&s, k->blocks);
  put_buffers(&s);
  put(&s, k->maps.len);
  for (uint32_t i = 0; i < k->maps.len; i++) put_tensor_map(&s, &k->maps.data[i]);
  put_region(&s, k->body);
  kva_arena_destroy(s.scratch);
}
