/* See language.h. */
#include "tools/driver/language.h"
#include "ops/build.h"
#include "ops/ids.h"
#include "ops/index.h"

static kva_status refuse(const char *who, const char *why, kva_diag *diag) {
  return kva_fail(diag, KVA_UNSUPPORTED, NULL,
                  "%s: expected a model of tokens, int32 or int64 [B, T], that gives logits, float [B, T, "
                  "vocabulary]: %s",
                  who, why);
}

/* step * row + first, a value of integers that depends on the number of the row alone. */
typedef struct row_number {
  int64_t step, first;
} row_number;

static bool is_integer(const kva_value *v, int64_t *out) {
  const kva_node *n = v->def;
  if (!n || !kva_is(n, KVA_OP_constant)) return false;
  const kva_tensor_data *t = ((const kva_constant_attrs *)n->attrs)->value;
  bool one = kva_dtype_is_int(t->dtype) && t->bytes * 8 == kva_dtype_bits(t->dtype);
  if (one) *out = kva_load_i64(t->dtype, t->data, 0);
  return one && *out >= 0 && *out < INT32_MAX;
}

/* Exporters of ONNX write 0, 1, ... as a range with first number and step. */
static bool find_row_number(const kva_value *v, kva_dim rows, row_number *out) {
  *out = (row_number){1, 0};
  for (const kva_node *n = v->def; n; n = n->operands[0].value->def) {
    int64_t c;
    if (kva_is(n, KVA_OP_iota)) {
      const kva_iota_attrs *a = n->attrs;
      return a->shape.v[a->axis < 0 ? a->axis + a->shape.n : a->axis] == rows;
    }
    if (kva_is(n, KVA_OP_cast) || kva_is(n, KVA_OP_reshape)) continue;
    bool adds = kva_is(n, KVA_OP_add);
    if ((!adds && !kva_is(n, KVA_OP_mul)) || !is_integer(n->operands[1].value, &c)) return false;
    if (out->step > INT32_MAX || out->first > INT32_MAX) return false;
    if (adds)
      out->first += out->step * c;
    else
      out->step *= c;
  }
  return false;
}

/* Rows until the smallest table ends that the number of a row is an index of. */
static int64_t find_context(const kva_module *m, const kva_graph *g) {
  int64_t least = INT64_MAX, end;
  for (const kva_node *n = g->first; n; n = n->next) {
    kva_indexing x = {0};
    kva_dim low, high;
    row_number r;
    if (!n->op->indexing) continue;
    n->op->indexing(n, &x);
    kva_index_range(m->exprs, &x, 0, &low, &high);
    if (!kva_expr_is_const(high, &end) ||
        !find_row_number(n->operands[x.operand].value, g->inputs.data[0]->type->dims[1], &r) || !r.step)
      continue;
    int64_t rows = end > r.first ? (end - r.first + r.step - 1) / r.step : 0;
    if (rows < least) least = rows;
  }
  return least;
}

/* Samplers and losses read floats. */
static void widen_logits(kva_module *m, kva_graph *main) {
  kva_builder b = kva_builder_before(m, main->last);
  kva_value *logits = kva_graph_output(main, 0), *wide = kva_cast(&b, logits, KVA_F32);
  if (wide == logits) return;
  kva_node_set_operand(main->last, 0, wide);
  wide->name = logits->name;
}

kva_status kva_language_of(kva_module *m, const char *who, kva_diag *diag, kva_language *out) {
  kva_graph *main = m->functions.data[0]->graph;
  if (main->inputs.len != 1) return refuse(who, "it has not one input", diag);
  const kva_type *in = main->inputs.data[0]->type, *logits = kva_graph_output(main, 0)->type;
  out->token_type = in->dtype;
  if (in->rank != 2 || (in->dtype != KVA_I32 && in->dtype != KVA_I64)) return refuse(who, "its input is another", diag);
  if (logits->rank != 3 || !kva_dtype_is_float(logits->dtype) || !kva_expr_is_const(logits->dims[2], &out->vocabulary))
    return refuse(who, "its first output is another", diag);
  out->context = find_context(m, main);
  widen_logits(m, main);
  return KVA_OK;
}
