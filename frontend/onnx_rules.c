/* The table of rules and their shared helpers: lookup by (domain, operator, version), checked access to inputs and
 * attributes. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

#include <math.h>
#include <stdlib.h>

typedef struct rule_row {
  const char *domain, *op_type;
  int64_t first, last;
  uint32_t min_in, max_in, max_out;
  kva_onnx_rule rule;
  int64_t arg;
  bool lists; /* takes sequences and optionals */
} rule_row;

static const rule_row rows[] = {
#define ROW(domain, op_type, first, last, min_in, max_in, max_out, rule, arg, lists) \
  {domain, #op_type, first, last, min_in, max_in, max_out, kva_onnx_##rule, arg, lists},
#define ONNX_OP_IN(...)      ROW(__VA_ARGS__, false)
#define ONNX_LIST_OP_IN(...) ROW(__VA_ARGS__, true)
#include "frontend/onnx_ops.def"
#undef ONNX_OP_IN
#undef ONNX_LIST_OP_IN
#undef ROW
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* The row that covers the version. *out_other is any row of the operator (NULL: unknown operator). */
static const rule_row *find_row(const char *domain, const char *op_type, int64_t version, const rule_row **out_other) {
  *out_other = NULL;
  for (int i = 0; i < N_ROWS; i++) {
    if (strcmp(rows[i].op_type, op_type) || strcmp(rows[i].domain, domain)) continue;
    if (version >= rows[i].first && version <= rows[i].last) return &rows[i];
    *out_other = &rows[i];
  }
  return NULL;
}

static const char *reason_of_unknown(const char *domain, const char *op_type) {
  static const char *const maps[] = {"ZipMap", "CastMap", "DictVectorizer"};
  for (size_t i = 0; !strcmp(domain, "ai.onnx.ml") && i < sizeof maps / sizeof *maps; i++)
    if (!strcmp(op_type, maps[i]))
      return "maps are no tensors; export the model without them (skl2onnx: options={'zipmap': False}), or end it at "
             "the tensor of scores, whose columns are in order of the class labels";
  return "there is no rule for this operator";
}

bool kva_onnx_supported(const char *domain, const char *op_type, int64_t version, const char **out_reason) {
  const rule_row *other;
  *out_reason = NULL;
  if (!*domain && version > KVA_ONNX_MAX_OPSET) return *out_reason = "the opset is newer than this build knows", false;
  if (find_row(domain, op_type, version, &other)) return true;
  if (!other)
    *out_reason = reason_of_unknown(domain, op_type);
  else if (version < other->first)
    *out_reason = "the operator does not exist in this opset version";
  else
    *out_reason = "the operator was removed before this opset version";
  return false;
}

const kva_op_info *kva_onnx_own_operator(const char *domain, const char *op_type) {
  const rule_row *other, *row = find_row(domain, op_type, 1, &other);
  return row && row->rule == kva_onnx_own ? kva_ops.ops[row->arg] : NULL;
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

kva_status kva_onnx_fail(kva_onnx_call *k, kva_status status, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  char text[512];
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return kva_fail(k->c->diag, status, &k->n->loc, "%s-%lld: %s", k->n->op_type, (long long)k->version, text);
}

kva_value *kva_onnx_with_dims(kva_onnx_call *k, kva_value *v, const kva_dim *dims, const char *user) {
  kva_dim assumed[KVA_MAX_RANK];
  const kva_type *t = v->type;
  if (!k->b->assumes || k->b->failed) return v;
  for (uint32_t i = 0; i < t->rank; i++) {
    bool differs = !dims[i] || kva_expr_is_const(kva_expr_sub(kva_onnx_exprs(k), dims[i], t->dims[i]), NULL);
    assumed[i] = differs ? t->dims[i] : dims[i];
  }
  return kva_assume(k->b, v, assumed, user);
}

kva_status kva_onnx_check_vector(kva_onnx_call *k, const kva_value *v, const char *name) {
  if (v->type->rank == 1) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "%s: expected rank 1, found %u", name, v->type->rank);
}

kva_status kva_onnx_check_rank(kva_onnx_call *k, uint32_t i, uint32_t rank) {
  const kva_value *v = kva_onnx_in(k, i);
  if (!v || v->type->rank == rank) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "input %u: expected rank %u, found %u", i, rank, v->type->rank);
}

kva_value *kva_onnx_with_extent(kva_onnx_call *k, kva_value *v, uint32_t axis, kva_dim extent, const char *user) {
  kva_dim dims[KVA_MAX_RANK] = {NULL};
  dims[axis] = extent;
  return kva_onnx_with_dims(k, v, dims, user);
}

kva_status kva_onnx_axis(kva_onnx_call *k, int64_t axis, uint32_t rank, uint32_t *out) {
  int64_t r = rank;
  if (axis < -r || axis >= r)
    return kva_onnx_fail(k, KVA_INVALID, "axis %lld is outside [-%u, %u)", (long long)axis, rank, rank);
  *out = (uint32_t)(axis < 0 ? axis + r : axis);
  return KVA_OK;
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

bool kva_onnx_wants(const kva_onnx_call *k, uint32_t i) {
  return i < k->n->n_outputs && k->n->output_names[i] && *k->n->output_names[i];
}

bool kva_onnx_as_inference(const kva_onnx_call *k, uint32_t i) {
  if (!k->c->read || k->b->graph->owner) return false;
  return !kva_onnx_wants(k, i) || !kva_map_get_str(k->c->read, k->n->output_names[i]);
}

void kva_onnx_set_out(kva_onnx_call *k, uint32_t i, kva_value *v) {
  if (i < k->n->n_outputs) k->out[i] = v;
}

kva_status kva_onnx_done(kva_onnx_call *k, kva_value *v) {
  kva_onnx_set_out(k, 0, v);
  return KVA_OK;
}

bool kva_onnx_never_equal(kva_onnx_call *k, kva_dim a, kva_dim b) {
  int64_t difference;
  return kva_expr_is_const(kva_expr_sub(kva_onnx_exprs(k), a, b), &difference) && difference;
}

kva_status kva_onnx_done_like(kva_onnx_call *k, kva_value *v, const kva_value *x, const char *operand) {
  bool larger = !k->b->failed && v->type->rank != x->type->rank;
  for (uint32_t i = 0; i < x->type->rank && !larger && !k->b->failed; i++)
    larger = kva_onnx_never_equal(k, kva_onnx_dim(v, i), kva_onnx_dim(x, i));
  if (larger) return kva_onnx_fail(k, KVA_INVALID, "%s does not broadcast to the shape of the result", operand);
  return kva_onnx_done(k, v);
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

const kva_onnx_attr *kva_onnx_find_attr(const kva_onnx_call *k, const char *name) {
  for (uint32_t i = 0; i < k->n->n_attrs; i++)
    if (!strcmp(k->n->attrs[i].name, name)) {
      *k->asked |= UINT64_C(1) << (i & 63);
      return &k->n->attrs[i];
    }
  return NULL;
}

static const char *kind_name(kva_onnx_attr_kind kind) {
  static const char *const names[] = {"an int",         "a float",          "a string",          "a tensor", "a graph",
                                      "a list of ints", "a list of floats", "a list of strings", "a type"};
  return names[kind];
}

static const kva_onnx_attr *attr_of_kind(kva_onnx_call *k, const char *name, kva_onnx_attr_kind kind) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, name);
  if (!a || a->kind == kind) return a;
  (void)kva_onnx_fail(k, KVA_INVALID, "attribute '%s': expected %s, found %s", name, kind_name(kind),
                      kind_name(a->kind));
  k->bad_attr = true;
  return NULL;
}

int64_t kva_onnx_int(kva_onnx_call *k, const char *name, int64_t absent) {
  const kva_onnx_attr *a = attr_of_kind(k, name, KVA_ONNX_INT);
  return a ? a->i : absent;
}

double kva_onnx_decimal(float v) {
  if (v == floorf(v)) return v;
  kva_text text = {0};
  kva_text_add_float(&text, v);
  double decimal = strtod(text.data, NULL);
  kva_text_free(&text);
  return decimal;
}

double kva_onnx_float(kva_onnx_call *k, const char *name, double absent) {
  const kva_onnx_attr *a = attr_of_kind(k, name, KVA_ONNX_FLOAT);
  return a ? kva_onnx_decimal(a->f) : absent;
}

const char *kva_onnx_string(kva_onnx_call *k, const char *name, const char *absent) {
  const kva_onnx_attr *a = attr_of_kind(k, name, KVA_ONNX_STRING);
  return a ? a->s : absent;
}

kva_ints kva_onnx_ints(kva_onnx_call *k, const char *name) {
  const kva_onnx_attr *a = attr_of_kind(k, name, KVA_ONNX_INTS);
  return a ? (kva_ints){a->n, a->ints} : (kva_ints){0, NULL};
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

kva_status kva_onnx_need_dims(kva_onnx_call *k, uint32_t i, const char *what, kva_dims *out) {
  kva_value *v = kva_onnx_in(k, i);
  if (kva_dtype_is_float(v->type->dtype))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "input %u (%s) is a float that is not a constant", i, what);
  if (v->type->rank > 1 || !(kva_dtype_is_int(v->type->dtype) || v->type->dtype == KVA_BOOL))
    return kva_onnx_fail(k, KVA_INVALID, "input %u (%s): expected integers of rank 0 or 1, found %s of rank %u", i,
                         what, kva_dtype_name(v->type->dtype), v->type->rank);
  const kva_dims *dims = kva_onnx_bound_contents(k->c, v, what);
  if (!dims)
    return kva_onnx_fail(k, KVA_UNSUPPORTED,
                         "input %u (%s) depends on data, and has no known number, at most %d, of elements", i, what,
                         KVA_ONNX_MAX_BOUND);
  *out = *dims;
  return KVA_OK;
}

kva_status kva_onnx_need_ints(kva_onnx_call *k, uint32_t i, const char *what, kva_ints *out) {
  kva_dims dims;
  const kva_dims *known = kva_onnx_contents(k->c, kva_onnx_in(k, i));
  if (!known && !kva_dtype_is_float(kva_onnx_in(k, i)->type->dtype))
    return kva_onnx_fail(k, KVA_UNSUPPORTED,
                         "input %u (%s) depends on data; it must follow from constants and input shapes", i, what);
  KVA_TRY(kva_onnx_need_dims(k, i, what, &dims));
  int64_t *v = KVA_NEW_ARRAY(k->c->arena, int64_t, dims.n + 1);
  for (uint32_t j = 0; j < dims.n; j++)
    if (!kva_expr_is_const(dims.v[j], &v[j]))
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "input %u (%s) depends on a symbolic extent; pin the symbol (--pin)", i,
                           what);
  *out = (kva_ints){dims.n, v};
  return KVA_OK;
}

kva_dims kva_onnx_dims_of(kva_onnx_call *k, kva_ints ints) {
  kva_dim *v = KVA_NEW_ARRAY(k->c->arena, kva_dim, ints.n + 1);
  for (uint32_t i = 0; i < ints.n; i++) v[i] = kva_expr_const(kva_onnx_exprs(k), ints.v[i]);
  return (kva_dims){ints.n, v};
}

kva_status kva_onnx_list(kva_onnx_call *k, const char *attr, uint32_t input, kva_ints *out, bool *out_given) {
  *out = kva_onnx_ints(k, attr);
  *out_given = kva_onnx_find_attr(k, attr) != NULL;
  if (*out_given && kva_onnx_in(k, input))
    return kva_onnx_fail(k, KVA_INVALID, "'%s' is an attribute, and input %u as well", attr, input);
  if (*out_given || !kva_onnx_in(k, input)) return KVA_OK;
  *out_given = true;
  return kva_onnx_need_ints(k, input, attr, out);
}

/* ---- building one node ------------------------------------------------------------------------------------------- */

static kva_status check_arity(kva_onnx_call *k, const rule_row *row) {
  const kva_onnx_node *n = k->n;
  if (n->n_inputs > row->max_in)
    return kva_onnx_fail(k, KVA_INVALID, "expected at most %u inputs, found %u", row->max_in, n->n_inputs);
  for (uint32_t i = 0; i < row->min_in; i++)
    if (!kva_onnx_in(k, i)) return kva_onnx_fail(k, KVA_INVALID, "input %u is required but was left out", i);
  if (n->n_outputs > row->max_out)
    return kva_onnx_fail(k, KVA_INVALID, "expected at most %u outputs, found %u", row->max_out, n->n_outputs);
  for (uint32_t i = 0; i < n->n_inputs; i++)
    if (!row->lists && n->inputs[i] && n->inputs[i]->type->kind != KVA_TYPE_TENSOR)
      return kva_onnx_fail(k, KVA_INVALID, "input %u: expected a tensor, found a sequence or optional", i);
  return KVA_OK;
}

static kva_status check_outputs(kva_onnx_call *k) {
  for (uint32_t i = 0; i < k->n->n_outputs; i++)
    if (kva_onnx_wants(k, i) && !k->out[i])
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "output %u ('%s') is not supported", i, k->n->output_names[i]);
  return KVA_OK;
}

/* Attributes that may stay unread. */
static bool is_harmless(const char *name) {
  static const char *const names[] = {
      /* repeat what shapes determine, or concern training, an unselected branch, or functions without parameters */
      "hidden_size", "num_outputs", "rotary_embedding_dim", "is_test", "momentum", "seed", "ratio", "training_mode",
      "broadcast", "spatial", "then_branch", "else_branch", "consumed_inputs", "activation_alpha", "activation_beta",
      /* permit what is done: sums in float, values in order, any size of steps */
      "stash_type", "sorted", "chunk_size", "accuracy_level",
      /* are read where they matter: without axes, ranks, blocks, padding by hand, outputs or narrow types they do not
       */
      "noop_with_empty_axes", "num_heads", "axis", "block_size", "pads", "value", "qk_matmul_output_mode", "saturate"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(names[i], name)) return true;
  return false;
}

/* An attribute that no rule has read would have no effect, which is not what the model says. */
static kva_status check_unread(kva_onnx_call *k) {
  for (uint32_t i = 0; i < k->n->n_attrs && i < 64; i++)
    if (!(*k->asked >> i & 1) && !is_harmless(k->n->attrs[i].name))
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "attribute '%s' is not known to this build", k->n->attrs[i].name);
  return KVA_OK;
}

kva_status kva_onnx_build(kva_onnx_ctx *c, const kva_onnx_node *n, kva_value **out) {
  uint64_t asked = 0;
  kva_onnx_call k = {.c = c, .b = &c->b, .n = n, .out = out, .version = *n->domain ? 1 : c->opset, .asked = &asked};
  const rule_row *other, *row = find_row(n->domain, n->op_type, k.version, &other);
  for (uint32_t i = 0; i < n->n_outputs; i++) out[i] = NULL;
  if (!row) {
    const char *reason;
    (void)kva_onnx_supported(n->domain, n->op_type, k.version, &reason);
    return kva_fail(c->diag, KVA_UNSUPPORTED, &n->loc, "%s%s%s, opset %lld: %s", n->domain, *n->domain ? "::" : "",
                    n->op_type, (long long)k.version, reason);
  }
  k.arg = row->arg;
  c->b.loc = n->loc;
  KVA_TRY(check_arity(&k, row));
  KVA_TRY(row->rule(&k));
  if (k.bad_attr || c->b.failed) return KVA_INVALID;
  KVA_TRY(check_unread(&k));
  return check_outputs(&k);
}
