/* Rule: Einsum. The operands are multiplied from left to right. Labels that neither the result nor a later operand has
 * are summed on the way: two operands that share such labels, and have labels of their own, are a matrix product.
 * Others get one axis per label of the equation (extent 1 for absent labels) and are multiplied element by element.
 * Labels of an ellipsis are the digits '0' to '7', from the right. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

/* ---- equation ---------------------------------------------------------------------------------------------------- */

typedef struct equation {
  char labels[64]; /* labels of the result, then the summed ones */
  uint32_t n, n_out;
} equation;

enum { ELLIPSIS = '0' };

static uint32_t label_index(const equation *e, char label) {
  uint32_t i = 0;
  while (i < e->n && e->labels[i] != label) i++;
  return i;
}

/* Expands one term, for an operand of rank `rank`, to one label per axis. False: the term does not fit. */
static bool expand_term(const char *term, size_t len, uint32_t rank, char *out) {
  uint32_t letters = 0, n = 0;
  bool dots = false;
  for (size_t i = 0; i < len; i++) {
    if (term[i] == '.') {
      if (dots || i + 2 >= len || term[i + 1] != '.' || term[i + 2] != '.') return false;
      dots = true;
      i += 2;
    } else {
      letters++;
    }
  }
  if (letters > rank || (!dots && letters != rank)) return false;
  for (size_t i = 0; i < len; i++) {
    if (term[i] != '.') {
      out[n++] = term[i];
      continue;
    }
    for (uint32_t d = rank - letters; d > 0; d--) out[n++] = (char)(ELLIPSIS + d - 1);
    i += 2;
  }
  out[n] = 0;
  return true;
}

/* A label repeated within an operand selects its diagonal: elements with unequal indices become 0, and the second axis
 * is summed. */
static kva_value *take_diagonals(kva_builder *b, kva_value *x, char *term) {
  for (uint32_t i = 0; term[i]; i++) {
    const char *again = strchr(term + i + 1, term[i]);
    if (!again || b->failed) continue;
    uint32_t j = (uint32_t)(again - term), rank = x->type->rank;
    kva_value *row = kva_onnx_ramp(b, KVA_I64, rank, i, x->type->dims[i]);
    kva_value *equal = kva_build2(b, KVA_OP_equal, row, kva_onnx_ramp(b, KVA_I64, rank, j, x->type->dims[j]));
    int64_t axis = j;
    x = kva_reduce(b, KVA_OP_reduce_sum, kva_onnx_where(b, equal, x, kva_scalar_like(b, x, 0)), 1, &axis, false);
    memmove(term + j, term + j + 1, strlen(term + j));
    i--;
  }
  return x;
}

/* The operand with axes in the order of the equation's labels, with extent 1 for absent ones. */
static kva_value *align_operand(kva_onnx_call *k, const equation *e, kva_value *x, const char *term) {
  int64_t perm[KVA_MAX_RANK];
  kva_dim dims[KVA_MAX_RANK];
  uint32_t at = 0;
  for (uint32_t i = 0; i < e->n; i++) {
    const char *found = strchr(term, e->labels[i]);
    dims[i] = found ? kva_onnx_dim(x, (uint32_t)(found - term)) : kva_expr_const(kva_onnx_exprs(k), 1);
    if (found) perm[at++] = found - term;
  }
  return kva_reshape(k->b, kva_transpose(k->b, x, perm), e->n, dims);
}

static void add_label(equation *e, char label) {
  if (label_index(e, label) == e->n && e->n + 1 < sizeof e->labels) e->labels[e->n++] = label;
}

/* Without "->" the result has the labels that occur once, in alphabetical order, after the ellipsis. */
static void implicit_output(equation *e, const char *all) {
  for (char c = ELLIPSIS + KVA_MAX_RANK; c >= ELLIPSIS; c--)
    if (strchr(all, c)) add_label(e, c);
  for (int c = 'A'; c <= 'z'; c++) {
    const char *first = strchr(all, c);
    if (first && !strchr(first + 1, c)) add_label(e, (char)c);
  }
}

typedef struct einsum_terms {
  char of[16][2 * KVA_MAX_RANK];
  char all[256];
  uint32_t n;
} einsum_terms;

static kva_status parse_terms(kva_onnx_call *k, const char *inputs, einsum_terms *out) {
  *out = (einsum_terms){.n = k->n->n_inputs};
  for (uint32_t i = 0; i < out->n; i++) {
    size_t len = strcspn(inputs, ",");
    const kva_value *x = kva_onnx_in(k, i);
    if (!x || !expand_term(inputs, len, x->type->rank, out->of[i]))
      return kva_onnx_fail(k, KVA_INVALID, "term %u of the equation does not fit its operand", i);
    memcpy(out->all + strlen(out->all), out->of[i], strlen(out->of[i]) + 1);
    inputs += len;
    if (*inputs == ',') inputs++;
  }
  return *inputs ? kva_onnx_fail(k, KVA_INVALID, "the equation has more terms than operands") : KVA_OK;
}

static kva_status parse_equation(kva_onnx_call *k, equation *e, einsum_terms *terms) {
  const char *text = kva_onnx_string(k, "equation", "");
  char compact[256];
  size_t n = 0;
  for (; *text && n + 1 < sizeof compact; text++)
    if (*text != ' ') compact[n++] = *text;
  compact[n] = 0;
  if (*text || k->n->n_inputs > 16) return kva_onnx_fail(k, KVA_UNSUPPORTED, "the equation is too long");
  char *arrow = strstr(compact, "->");
  if (arrow) *arrow = 0;
  KVA_TRY(parse_terms(k, compact, terms));
  if (!arrow) implicit_output(e, terms->all);
  uint32_t dots = 0;
  while (strchr(terms->all, ELLIPSIS + (char)dots) && dots < KVA_MAX_RANK) dots++;
  for (const char *p = arrow ? arrow + 2 : ""; *p; p++) {
    if (*p != '.')
      add_label(e, *p);
    else
      for (uint32_t d = *(p + 1) == '.' && *(p + 2) == '.' ? (p += 2, dots) : 0; d > 0; d--)
        add_label(e, (char)(ELLIPSIS + d - 1));
  }
  e->n_out = e->n;
  for (const char *p = terms->all; *p; p++) add_label(e, *p);
  if (e->n > KVA_MAX_RANK)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "the equation has more than %d labels", KVA_MAX_RANK);
  return KVA_OK;
}

/* ---- contraction of two operands --------------------------------------------------------------------------------- */

/* A value and its labels, one for each axis. */
typedef struct factor {
  kva_value *x;
  const char *labels;
} factor;

/* What the labels of two factors are for their product. */
typedef struct roles {
  char batch[KVA_MAX_RANK + 1];  /* of both, needed later */
  char depth[KVA_MAX_RANK + 1];  /* of both, summed here */
  char own[2][KVA_MAX_RANK + 1]; /* of one: rows and columns */
  bool equal;                    /* labels of both have the same extent in both */
} roles;

static uint32_t axis_of(const factor *f, char label) {
  return (uint32_t)(strchr(f->labels, label) - f->labels);
}

static kva_dim extent_of(const factor *f, char label) {
  return kva_onnx_dim(f->x, axis_of(f, label));
}

/* Takes extents of labels that both have to be equal, where neither may be 1 for the other's repetition: a number is
 * the better one. */
static void agree(kva_onnx_call *k, factor f[2]) {
  for (const char *c = f[0].labels; *c; c++) {
    if (!strchr(f[1].labels, *c)) continue;
    kva_dim x = extent_of(&f[0], *c), y = extent_of(&f[1], *c);
    if (x == y || kva_at_most_one(x) || kva_at_most_one(y)) continue;
    bool second = kva_expr_is_const(x, NULL);
    factor *other = &f[second];
    other->x = kva_onnx_with_extent(k, other->x, axis_of(other, *c), second ? x : y, "an operand of the equation");
  }
}

static void append(char *list, char label) {
  size_t n = strlen(list);
  list[n] = label, list[n + 1] = 0;
}

static roles roles_of(const factor f[2], const char *later) {
  roles r = {.equal = true};
  for (int i = 0; i < 2; i++)
    for (const char *c = f[i].labels; *c; c++) {
      bool shared = strchr(f[1 - i].labels, *c);
      if (!shared) append(r.own[i], *c);
      if (!shared || i) continue;
      append(strchr(later, *c) ? r.batch : r.depth, *c);
      r.equal &= extent_of(&f[0], *c) == extent_of(&f[1], *c);
    }
  return r;
}

/* [batch..., own, depth] */
static kva_value *as_matrices(kva_builder *b, const factor *f, const roles *r, const char *own) {
  int64_t perm[KVA_MAX_RANK];
  kva_dim dims[KVA_MAX_RANK];
  uint32_t n = 0, n_batch = (uint32_t)strlen(r->batch), n_own = (uint32_t)strlen(own);
  const char *const lists[] = {r->batch, own, r->depth};
  for (int i = 0; i < 3; i++)
    for (const char *c = lists[i]; *c; c++) perm[n++] = strchr(f->labels, *c) - f->labels;
  kva_value *x = kva_transpose(b, f->x, perm);
  if (b->failed) return x;
  for (uint32_t i = 0; i < n_batch; i++) dims[i] = x->type->dims[i];
  dims[n_batch] = kva_onnx_product(b, x->type->dims, n_batch, n_batch + n_own);
  dims[n_batch + 1] = kva_onnx_product(b, x->type->dims, n_batch + n_own, n);
  return kva_reshape(b, x, n_batch + 2, dims);
}

/* The product of matrices that two factors are. */
static factor matrix_product(kva_onnx_call *k, const factor f[2], const roles *r) {
  kva_builder *b = k->b;
  kva_value *y = kva_matmul(b, as_matrices(b, &f[0], r, r->own[0]), as_matrices(b, &f[1], r, r->own[1]), false, true);
  const char *labels = kva_arena_printf(b->m->arena, "%s%s%s", r->batch, r->own[0], r->own[1]);
  kva_dim dims[KVA_MAX_RANK];
  uint32_t n = 0;
  for (const char *c = labels; *c; c++) dims[n++] = extent_of(&f[!strchr(f[0].labels, *c)], *c);
  return (factor){kva_reshape(b, y, n, dims), labels};
}

/* Sums the labels that are not needed later, neither by the result nor by other operands. */
static factor summed(kva_onnx_call *k, factor f, const char *later) {
  int64_t axes[KVA_MAX_RANK];
  uint32_t n = 0;
  char *kept = kva_arena_strdup(k->b->m->arena, f.labels), *end = kept;
  for (uint32_t i = 0; f.labels[i]; i++) {
    if (strchr(later, f.labels[i]))
      *end++ = f.labels[i];
    else
      axes[n++] = i;
  }
  *end = 0;
  return n ? (factor){kva_reduce(k->b, KVA_OP_reduce_sum, f.x, n, axes, false), kept} : f;
}

/* Rows and columns make a matrix product; else one factor repeats along labels of the other, or sums are short of a
 * dimension. Bytes and the like have no products of their own type. */
static bool is_matrix_product(const factor f[2], const roles *r) {
  kva_dtype t = f[0].x->type->dtype;
  bool rank = strlen(r->batch) + 2 <= KVA_MAX_RANK, type = kva_dtype_is_float(t) || t == KVA_I32 || t == KVA_I64;
  return rank && type && r->equal && *r->depth && *r->own[0] && *r->own[1];
}

static factor contract(kva_onnx_call *k, const equation *e, factor x, factor y, const char *later) {
  factor f[2] = {summed(k, x, kva_arena_printf(k->b->m->arena, "%s%s", later, y.labels)),
                 summed(k, y, kva_arena_printf(k->b->m->arena, "%s%s", later, x.labels))};
  agree(k, f);
  if (k->b->failed) return f[0];
  roles r = roles_of(f, later);
  if (is_matrix_product(f, &r)) return matrix_product(k, f, &r);
  kva_value *product =
      kva_mul(k->b, align_operand(k, e, f[0].x, f[0].labels), align_operand(k, e, f[1].x, f[1].labels));
  return (factor){product, e->labels};
}

/* ---- the rule ---------------------------------------------------------------------------------------------------- */

/* Labels of the result and of operands from `next` on. */
static const char *labels_later(kva_onnx_call *k, const equation *e, const einsum_terms *terms, uint32_t next) {
  const char *all = kva_arena_strndup(k->b->m->arena, e->labels, e->n_out);
  for (uint32_t i = next; i < terms->n; i++) all = kva_arena_printf(k->b->m->arena, "%s%s", all, terms->of[i]);
  return all;
}

kva_status kva_onnx_einsum(kva_onnx_call *k) {
  equation e = {.n = 0};
  einsum_terms terms;
  factor product = {0};
  KVA_TRY(parse_equation(k, &e, &terms));
  for (uint32_t i = 0; i < terms.n; i++) {
    factor x = {take_diagonals(k->b, kva_onnx_in(k, i), terms.of[i]), terms.of[i]};
    if (k->b->failed) return KVA_INVALID;
    product = i ? contract(k, &e, product, x, labels_later(k, &e, &terms, i + 1)) : x;
    if (k->b->failed) return KVA_INVALID;
  }
  product = summed(k, product, labels_later(k, &e, &terms, terms.n));
  if (k->b->failed) return KVA_INVALID;
  e.n = e.n_out;
  return kva_onnx_done(k, align_operand(k, &e, product.x, product.labels));
}
