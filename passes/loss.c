/* A loss for a model that has none: kva_make_loss in tune.h. */
#include "passes/passes_internal.h"
#include "passes/tune.h"

static kva_value *without_reshapes(kva_value *v) {
  while (v->def && kva_is(v->def, KVA_OP_reshape)) v = kva_operand(v->def, 0);
  return v;
}

/* What the model's final softmax is taken of, with its axis; the value itself without one. ONNX's softmax before opset
 * 13 stands between reshapes that fold all classes into the last axis. */
static kva_value *logits_of(kva_value *v, uint32_t *out_axis) {
  kva_value *p = without_reshapes(v);
  if (p->def && (kva_is(p->def, KVA_OP_softmax) || kva_is(p->def, KVA_OP_log_softmax))) {
    kva_value *x = kva_operand(p->def, 0);
    int64_t axis = ((const kva_softmax_attrs *)p->def->attrs)->axis;
    *out_axis = (uint32_t)(axis < 0 ? axis + x->type->rank : axis);
    return x;
  }
  *out_axis = v->type->rank >= 4 ? 1 : v->type->rank - 1;
  return v;
}

/* x with `axis` last and the other axes of extent 1 dropped, but for the first: [B, 1000, 1, 1] is [B, 1000]. */
static kva_value *rows_of_classes(kva_builder *b, kva_value *x, uint32_t axis) {
  int64_t perm[KVA_MAX_RANK];
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = x->type->rank, n = 0, kept = 0;
  for (uint32_t d = 0; d < rank; d++)
    if (d != axis) perm[n++] = d;
  perm[n] = axis;
  kva_value *y = axis + 1 == rank ? x : kva_transpose(b, x, perm);
  for (uint32_t d = 0; d < rank; d++)
    if (d == 0 || d + 1 == rank || !kva_expr_is(y->type->dims[d], 1)) dims[kept++] = y->type->dims[d];
  return kva_reshape(b, y, kept, dims);
}

static kva_value *mean(kva_builder *b, kva_value *x) {
  int64_t axes[KVA_MAX_RANK];
  for (uint32_t d = 0; d < x->type->rank; d++) axes[d] = d;
  return kva_reduce(b, KVA_OP_reduce_mean, x, x->type->rank, axes, false);
}

/* Fraction of rows whose greatest logit is the label's. */
static kva_value *accuracy(kva_builder *b, kva_value *logits, kva_value *labels) {
  kva_argmax_attrs a = {.axis = logits->type->rank - 1};
  kva_value *answer = kva_cast(b, kva_build(b, KVA_OP_argmax, 1, &logits, &a), labels->type->dtype);
  return mean(b, kva_cast(b, kva_build2(b, KVA_OP_equal, answer, labels), KVA_F32));
}

static uint32_t add_cross_entropy(kva_builder *b, kva_value *output, kva_dtype type, kva_value **out,
                                  const char **names) {
  uint32_t axis;
  kva_value *x = logits_of(output, &axis), *logits = rows_of_classes(b, x, axis);
  const kva_type *t = kva_type_tensor(b->m, type, logits->type->rank - 1, logits->type->dims);
  kva_value *labels = kva_graph_add_input(b->graph, t, "labels");
  kva_cross_entropy_attrs a = {.ignore_index = -1};
  out[0] = mean(b, kva_build(b, KVA_OP_cross_entropy, 2, (kva_value *[]){logits, labels}, &a));
  out[1] = accuracy(b, logits, labels);
  names[1] = "accuracy";
  return 2;
}

static uint32_t add_squares(kva_builder *b, kva_value *output, kva_value **out) {
  kva_value *error = kva_sub(b, output, kva_graph_add_input(b->graph, output->type, "target"));
  out[0] = mean(b, kva_mul(b, error, error));
  return 1;
}

/* Whether a step of g finds this extent in data; an input cannot have it. */
static bool is_found(const kva_graph *g, kva_dim extent) {
  for (const kva_node *n = g->first; n; n = n->next) {
    kva_dims binds = kva_node_binds(n);
    for (uint32_t i = 0; i < binds.n; i++)
      if (kva_expr_uses(extent, binds.v[i])) return true;
  }
  return false;
}

/* Data are given by the names of inputs, so the loss's own needs one to itself. */
static kva_status check_name(kva_module *m, const kva_graph *g, const char *name) {
  for (uint32_t i = 0; i < g->inputs.len; i++)
    if (g->inputs.data[i]->name && !strcmp(g->inputs.data[i]->name, name))
      return kva_error(m->diag, NULL, "--loss adds an input '%s', and the model has one of that name; rename it", name);
  return KVA_OK;
}

static kva_status check(kva_module *m, const char *loss, kva_dtype labels) {
  const kva_graph *g = m->functions.data[0]->graph;
  const kva_value *y = kva_graph_output(g, 0);
  if (m->train || kva_module_find_function(m, "loss"))
    return kva_error(m->diag, NULL, "the model has a train block with a loss of its own; --loss is for those without");
  if (labels != KVA_I64 && labels != KVA_I32)
    return kva_error(m->diag, NULL, "--labels: expected int64 or int32, found %s", kva_dtype_name(labels));
  if (y->type->kind != KVA_TYPE_TENSOR || !kva_dtype_is_float(y->type->dtype) || y->type->rank == 0)
    return kva_error(m->diag, NULL, "--loss: the model's first output must be a tensor of floats");
  for (uint32_t d = 0; d < y->type->rank; d++)
    if (is_found(g, y->type->dims[d]))
      return kva_error(m->diag, NULL,
                       "--loss: axis %u of the model's first output depends on data; expected an extent that "
                       "inputs tell, for labels or target of that shape",
                       d);
  if (!strcmp(loss, "cross_entropy")) return check_name(m, g, "labels");
  if (!strcmp(loss, "mse")) return check_name(m, g, "target");
  return kva_error(m->diag, NULL, "unknown loss '%s'; known: cross_entropy, mse", loss);
}

kva_status kva_make_loss(kva_module *m, const kva_pass_options *options, bool *changed) {
  const kva_loss_options *o = options->loss;
  if (!o) return kva_error(m->diag, NULL, "pass 'loss' needs to know which: --loss cross_entropy or mse");
  KVA_TRY(check(m, o->name, o->labels));
  kva_function *f = kva_function_clone(m, m->functions.data[0], "loss");
  kva_node *ret = f->graph->last;
  kva_builder b = kva_builder_before(m, ret);
  kva_value *out[2];
  const char **names = KVA_NEW_ARRAY(m->arena, const char *, 2);
  names[0] = "loss";
  kva_value *output = kva_operand(ret, 0);
  uint32_t n =
      !strcmp(o->name, "mse") ? add_squares(&b, output, out) : add_cross_entropy(&b, output, o->labels, out, names);
  if (b.failed) return KVA_INVALID;
  kva_node_create(f->graph, ret, ret->op, n, out, 0, NULL, ret->loc);
  kva_node_remove(ret);
  f->output_names = names;
  m->train = kva_arena_memdup(m->arena, o->spec, sizeof *o->spec);
  *changed = true;
  return KVA_OK;
}
