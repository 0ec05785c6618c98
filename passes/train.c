/* From a loss to a training step.
 *
 * What: function "loss" (forward + loss + metrics, made by the frontend) becomes two: "eval", the same under the name
 * that the runtime asks for, and "train_step" with one more input, the scalar learning rate `lr`: forward, gradients,
 * global-norm clipping, optimiser updates of every trained parameter, step counter. Outputs of train_step: those of
 * "loss", then grad_norm when clipping is on. Optimiser moments are states "<parameter>.m" and so on; the counter is
 * state "train.step". Where dropout draws, "train.pass" counts micro-batches. Batch normalisation has the statistics of
 * the batch in training, and moves the running ones (train_norm.c); "eval" has these.
 * Where options->adjustable, weight decay and clipping are read from states, so that one compiled trainer serves all
 * values: AdamW's parameter is multiplied by 1 - lr * decay before its update (the same product that the operator
 * makes), the others get gradient + decay * parameter.
 * For steps of several micro-batches it becomes "grad_step" and "apply_step" instead. grad_step has one more input, the
 * scalar `first`: it sets the states "<parameter>.grad" to the gradients where first is 1, else adds them. apply_step
 * has the inputs `scale` and `lr`: clipping and updates by scale * <parameter>.grad; its output is grad_norm, if any.
 * With options->mesh the gradients are those of all processes (passes/shard.c): of train_step the mean over them, of
 * apply_step the sum, so that `scale` is 1 / (processes * micro-batches). With mesh.zero gradients, moments and
 * parameters may be parts (passes/shard_states.c): a process updates its part, and parameters that are whole are
 * gathered. With mesh.tensor the functions compute with slices of parameters (passes/partition.c).
 */
#include "ops/optimizer.h"
#include "passes/passes_internal.h"

#include <math.h>

static void write_state(kva_builder *b, kva_state *s, kva_value *v) {
  KVA_ASSERT(b->failed || v->type == s->type);
  kva_build_node(b, KVA_OP_state_write, 1, &v, 0, &(kva_state_write_attrs){.state = s});
}

/* A state of training, which its programs share; the model must have none of this name. Those that the model had are
 * told by the kind and type that training gives its own. */
static kva_state *train_state(kva_builder *b, const char *name, const kva_type *type, kva_state_kind kind) {
  kva_state *taken = kva_module_find_state(b->m, name);
  if (taken && taken->id >= b->m->train->first_state && taken->type == type && taken->kind == kind) return taken;
  if (taken) {
    (void)kva_error(b->m->diag, &taken->loc,
                    "the model already has a state '%s', a name that training needs; rename it", name);
    b->failed = true;
  }
  kva_state *s = kva_state_create(b->m, name, type, kind);
  s->init = KVA_INIT_ZEROS;
  return s;
}

/* A state of the type of the parameter's gradient g. */
static kva_state *parameter_state(kva_builder *b, kva_state *param, const kva_value *g, const char *suffix,
                                  kva_state_kind kind, const kva_pass_options *o) {
  const char *name = kva_arena_printf(b->m->arena, "%s.%s", param->name, suffix);
  kva_state *s = train_state(b, name, g->type, kind);
  s->of = param;
  if (param->full) {
    s->full = kva_type_with_dtype(b->m, param->full, g->type->dtype);
    s->slices = param->slices;
    s->split_axis = param->split_axis;
  }
  if (kva_is_part(param, g)) kva_make_part(b->m, s, param->whole ? param->whole : param->type, o->mesh.data);
  return s;
}

static kva_state *counter_state(kva_builder *b, const char *name) {
  return train_state(b, name, kva_type_scalar(b->m, KVA_I64), KVA_STATE_BUFFER);
}

/* Adds one; the value after it. */
static kva_value *count(kva_builder *b, kva_state *counter) {
  kva_value *next = kva_add(b, kva_read_state(b, counter), kva_const_scalar(b, KVA_I64, 1));
  write_state(b, counter, next);
  return next;
}

static kva_value *plus(kva_builder *b, kva_value *x, kva_value *y) {
  return x && y ? kva_add(b, x, y) : x ? x : y;
}

/* x of all processes of an axis of the mesh; x may be NULL. */
static kva_value *sum_over(kva_builder *b, kva_value *x, int64_t parts, int64_t stride) {
  kva_all_reduce_attrs attrs = {.parts = parts, .stride = stride};
  return x ? kva_result(kva_build_node(b, KVA_OP_all_reduce, 1, &x, 1, &attrs), 0) : NULL;
}

/* The sum of squares over all gradients that are, or are not, parts and slices, in float; NULL: there are none. */
static kva_value *sum_of_squares(kva_builder *b, kva_value **grads, uint32_t n, bool parts, bool slices) {
  kva_value *total = NULL;
  for (uint32_t i = 0; i < n; i++) {
    const kva_state *s = b->m->states.data[i];
    if (!grads[i] || kva_is_part(s, grads[i]) != parts || (s->full != NULL) != slices) continue;
    kva_value *g = kva_cast(b, grads[i], KVA_F32);
    int64_t axes[KVA_MAX_RANK];
    for (uint32_t d = 0; d < g->type->rank; d++) axes[d] = d;
    kva_value *square = kva_reduce(b, KVA_OP_reduce_sum, kva_mul(b, g, g), g->type->rank, axes, false);
    total = total ? kva_add(b, total, square) : square;
  }
  return total;
}

/* The same of whole gradients, or of slices, with those of which each process has a part. */
static kva_value *all_squares(kva_builder *b, kva_value **grads, uint32_t n, const kva_mesh *mesh, bool slices) {
  kva_value *whole = sum_of_squares(b, grads, n, false, slices), *parts = sum_of_squares(b, grads, n, true, slices);
  parts = sum_over(b, parts, mesh->data, kva_mesh_group(mesh));
  return plus(b, whole, parts);
}

/* sqrt(sum over all gradients of the sum of squares). */
static kva_value *global_norm(kva_builder *b, kva_value **grads, uint32_t n, const kva_mesh *mesh) {
  kva_value *whole = all_squares(b, grads, n, mesh, false), *slices = all_squares(b, grads, n, mesh, true);
  slices = sum_over(b, slices, mesh->tensor, 1);
  kva_value *total = plus(b, whole, slices);
  return total ? kva_build1(b, KVA_OP_sqrt, total) : NULL;
}

/* min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does. */
static kva_value *clip_scale(kva_builder *b, kva_value *norm, kva_value *clip) {
  kva_value *ratio = kva_div(b, clip, kva_add(b, norm, kva_const_scalar(b, KVA_F32, 1e-6)));
  return kva_build2(b, KVA_OP_min, ratio, kva_const_scalar(b, KVA_F32, 1));
}

/* A number of the train block: a constant, or a state that starts with it. */
static kva_value *setting(kva_builder *b, const kva_pass_options *options, const char *name, double value) {
  if (!options->adjustable) return kva_const_scalar(b, KVA_F32, value);
  kva_state *s = train_state(b, name, kva_type_scalar(b->m, KVA_F32), KVA_STATE_BUFFER);
  s->init = KVA_INIT_CONSTANT;
  s->init_a = value;
  return kva_read_state(b, s);
}

typedef struct update {
  kva_builder *b;
  const kva_train_spec *spec;
  const kva_op_info *op;
  const kva_pass_options *options;
  kva_value *lr, *step;
  kva_value *decay; /* NULL: a constant of the operators */
} update;

/* Parameter and gradient as the operator gets them. */
static void decay(update *u, const kva_state *p, kva_value **parameter, kva_value **g) {
  if (!u->decay || !p->decay) return;
  kva_dtype t = p->type->dtype;
  kva_value *rate = kva_cast(u->b, u->decay, t);
  if (!u->op->decoupled_decay) {
    *g = kva_add(u->b, *g, kva_mul(u->b, *parameter, rate));
    return;
  }
  kva_value *lost = kva_mul(u->b, kva_cast(u->b, u->lr, t), rate);
  *parameter = kva_mul(u->b, *parameter, kva_sub(u->b, kva_const_scalar(u->b, t, 1), lost));
}

static void update_parameter(update *u, kva_state *p, kva_value *g) {
  enum { MAX_MOMENTS = sizeof u->op->moments / sizeof *u->op->moments };
  kva_state *moments[MAX_MOMENTS];
  kva_value *parameter = kva_read_state(u->b, p);
  bool gathers = !p->whole && kva_is_part(p, g);
  if (gathers) parameter = kva_own_part(u->b, parameter, &u->options->mesh);
  decay(u, p, &parameter, &g);
  kva_value *operands[MAX_MOMENTS + 4] = {parameter, g};
  uint32_t n_moments = (uint32_t)u->op->n_results - 1, n = KVA_UPDATE_MOMENTS;
  KVA_ASSERT(n_moments <= MAX_MOMENTS);
  for (uint32_t i = 0; i < n_moments; i++) {
    moments[i] = parameter_state(u->b, p, g, u->op->moments[i], KVA_STATE_MOMENT, u->options);
    operands[n++] = kva_read_state(u->b, moments[i]);
  }
  operands[n++] = kva_cast(u->b, u->lr, p->type->dtype);
  if (n < (uint32_t)u->op->max_operands) operands[n++] = u->step;
  double constant = p->decay && !u->decay ? u->spec->weight_decay : 0;
  void *attrs = kva_optimizer_attrs(u->b->m->arena, u->op, u->spec, constant);
  kva_node *node = kva_build_node(u->b, (kva_op_id)u->op->id, n, operands, 1 + n_moments, attrs);
  if (u->b->failed) return;
  kva_value *updated = &node->results[0];
  write_state(u->b, p, gathers ? kva_all_gather(u->b, updated, p->type, &u->options->mesh) : updated);
  for (uint32_t i = 0; i < n_moments; i++) write_state(u->b, moments[i], &node->results[1 + i]);
}

static void append_output(kva_module *m, kva_function *f, kva_value *v, const char *name, kva_result_role role) {
  KVA_ASSERT(v->graph == f->graph && (f->output_roles || !f->graph->last->n_operands));
  kva_node *ret = f->graph->last;
  uint32_t n = ret->n_operands;
  kva_value **values = KVA_NEW_ARRAY(m->arena, kva_value *, n + 1);
  const char **names = KVA_NEW_ARRAY(m->arena, const char *, n + 1);
  kva_result_role *roles = KVA_NEW_ARRAY(m->arena, kva_result_role, n + 1);
  for (uint32_t i = 0; i < n; i++)
    values[i] = ret->operands[i].value, names[i] = f->output_names[i], roles[i] = f->output_roles[i];
  values[n] = v;
  names[n] = name;
  roles[n] = role;
  kva_node_create(f->graph, ret, ret->op, n + 1, values, 0, NULL, ret->loc);
  kva_node_remove(ret);
  f->output_names = names;
  f->output_roles = roles;
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* x / (1 - ratio) where a uniform number of this dropout's stream is at least ratio, else 0. */
static kva_value *random_dropout(kva_builder *b, const kva_node *n, kva_value *seed, kva_value *pass, int64_t stream) {
  KVA_ASSERT(kva_is(n, KVA_OP_dropout) && stream > 0);
  kva_value *x = kva_operand(n, 0);
  double ratio = ((const kva_dropout_attrs *)n->attrs)->ratio;
  kva_random_uniform_attrs attrs = {.shape = {x->type->rank, x->type->dims}, .dtype = KVA_F32, .stream = stream};
  kva_value *u = kva_build(b, KVA_OP_random_uniform, 2, (kva_value *[]){seed, pass}, &attrs);
  kva_value *kept = kva_build2(b, KVA_OP_less_equal, kva_const_scalar(b, KVA_F32, ratio), u);
  kva_value *scaled = kva_mul(b, x, kva_scalar_like(b, x, 1 / (1 - ratio)));
  return kva_build3(b, KVA_OP_where, kept, scaled, kva_scalar_like(b, x, 0));
}

static bool has_dropout(const kva_graph *g) {
  const kva_node *n = g->first;
  while (n && !kva_is(n, KVA_OP_dropout)) n = n->next;
  return n != NULL;
}

/* Every dropout of a training program draws from (state "train.seed", number of the micro-batch, its own stream). All
 * programs that train count "train.pass": a run goes on with other micro-batches, and on another mesh. */
static kva_status expand_dropout(kva_module *m, kva_graph *g) {
  if (!has_dropout(g)) return KVA_OK;
  kva_builder b = kva_builder_before(m, g->first);
  kva_value *seed = kva_read_state(&b, counter_state(&b, "train.seed"));
  kva_value *pass = kva_read_state(&b, counter_state(&b, "train.pass"));
  if (b.failed) return KVA_INVALID;
  int64_t stream = 1;
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (!kva_is(n, KVA_OP_dropout)) continue;
    b.before = n;
    b.loc = n->loc;
    kva_value_replace_all_uses(&n->results[0], random_dropout(&b, n, seed, pass, stream++));
    kva_node_remove(n);
  }
  return b.failed ? KVA_INVALID : KVA_OK;
}

/* grads: by state id, of the n states of the model. */
static kva_status add_updates(kva_module *m, kva_function *f, uint32_t n, kva_value **grads, kva_value *lr,
                              const kva_pass_options *options) {
  const kva_train_spec *spec = m->train;
  const kva_op_info *op = kva_optimizer_find(spec->optimizer);
  if (!op)
    return kva_error(m->diag, &spec->loc, "unknown optimizer '%s'; known: %s", spec->optimizer,
                     kva_optimizer_list(m->arena));
  kva_builder b = kva_builder_before(m, f->graph->last);
  kva_value *scale = NULL, *norm = NULL;
  if (spec->clip > 0 && (norm = global_norm(&b, grads, n, &options->mesh)))
    scale = clip_scale(&b, norm, setting(&b, options, "train.clip", spec->clip));

  kva_value *step = kva_add(&b, kva_read_state(&b, counter_state(&b, "train.step")), kva_const_scalar(&b, KVA_I64, 1));
  update u = {.b = &b, .spec = spec, .op = op, .options = options, .lr = lr, .step = step};
  if (options->adjustable && spec->weight_decay > 0)
    u.decay = setting(&b, options, "train.weight_decay", spec->weight_decay);
  bool any = false;
  for (uint32_t i = 0; i < n && !b.failed; i++) {
    if (!grads[i]) continue;
    any = true;
    kva_value *g = scale ? kva_mul(&b, grads[i], kva_cast(&b, scale, grads[i]->type->dtype)) : grads[i];
    update_parameter(&u, m->states.data[i], g);
  }
  write_state(&b, counter_state(&b, "train.step"), step);
  if (b.failed) return KVA_INVALID;
  if (!any)
    return kva_error(m->diag, &spec->loc,
                     "the loss depends on no trained parameter; --train PATTERN chooses parameters by name");
  if (norm) append_output(m, f, norm, "grad_norm", KVA_RESULT_GRAD_NORM);
  return KVA_OK;
}

/* What the loss is multiplied by for differentiation, and gradients are divided by: gradients of activations in float16
 * would vanish below 6e-8. A power of two, so that float gradients are the same bits with and without. */
static double loss_scale(const kva_pass_options *options) {
  return options->compute == KVA_F16 ? 1024 : 1;
}

/* By way of the harness, so that pass autodiff is verified and shown inside training, too. */
static kva_status run_autodiff(kva_module *m, kva_function *f, kva_value *loss, const kva_pass_options *options,
                               kva_value **grads) {
  kva_pass_options o = *options;
  bool changed = false;
  o.gradients = &(kva_gradients){f, loss, grads};
  return kva_run_pass(m, KVA_PASS_autodiff, &o, &changed);
}

/* By way of the harness, too: gradients, loss and metrics become those of all processes of the mesh. grads NULL: the
 * function has none to sum. */
static kva_status run_shard(kva_module *m, kva_function *f, const kva_pass_options *options, kva_value **grads,
                            bool only_parts) {
  kva_pass_options o = *options;
  bool changed = false;
  if (options->mesh.data <= 1) return KVA_OK;
  o.gradients = &(kva_gradients){.function = f, .of = grads};
  o.only_parts = only_parts;
  return kva_run_pass(m, KVA_PASS_shard, &o, &changed);
}

static kva_status differentiate(kva_module *m, kva_function *f, const kva_pass_options *options, kva_value **grads) {
  double scale = loss_scale(options);
  kva_builder b = kva_builder_before(m, f->graph->last);
  kva_value *loss = kva_graph_output(f->graph, 0);
  if (scale == 1) return run_autodiff(m, f, loss, options, grads);
  KVA_TRY(run_autodiff(m, f, kva_mul(&b, loss, kva_scalar_like(&b, loss, scale)), options, grads));
  b = kva_builder_before(m, f->graph->last);
  for (uint32_t i = 0; i < m->states.len; i++)
    if (grads[i]) grads[i] = kva_mul(&b, grads[i], kva_scalar_like(&b, grads[i], 1 / scale));
  return b.failed ? KVA_INVALID : KVA_OK;
}

/* Forward and gradients in a copy of "loss" with one more scalar input. */
static kva_status make_gradients(kva_module *m, const kva_function *loss, const char *name, const char *input,
                                 const kva_pass_options *options, kva_function **out_function, kva_value **out_input,
                                 kva_value **grads) {
  kva_function *f = *out_function = kva_function_clone(m, loss, name);
  *out_input = kva_graph_add_input(f->graph, kva_type_scalar(m, KVA_F32), input);
  KVA_TRY(expand_dropout(m, f->graph));
  KVA_TRY(kva_train_norms(m, f->graph));
  if (options->mesh.pipeline > 1) KVA_TRY(kva_check_forward_states(m, f->graph));
  return differentiate(m, f, options, grads);
}

static kva_status count_pass(kva_module *m, const kva_function *loss, kva_function *f) {
  if (!has_dropout(loss->graph)) return KVA_OK;
  kva_builder b = kva_builder_before(m, f->graph->last);
  (void)count(&b, counter_state(&b, "train.pass"));
  return b.failed ? KVA_INVALID : KVA_OK;
}

static kva_status make_whole_step(kva_module *m, const kva_function *loss, const kva_pass_options *options) {
  uint32_t n = m->states.len;
  kva_function *f;
  kva_value *lr, **grads = KVA_NEW_ARRAY(m->arena, kva_value *, n + 3); /* and counters */
  KVA_TRY(make_gradients(m, loss, "train_step", "lr", options, &f, &lr, grads));
  KVA_TRY(run_shard(m, f, options, grads, false));
  kva_builder b = kva_builder_before(m, f->graph->last);
  for (uint32_t i = 0; i < n && options->mesh.data > 1; i++)
    if (grads[i]) grads[i] = kva_mul(&b, grads[i], kva_scalar_like(&b, grads[i], 1 / (double)options->mesh.data));
  if (b.failed) return KVA_INVALID;
  KVA_TRY(add_updates(m, f, n, grads, lr, options));
  return count_pass(m, loss, f);
}

static kva_status make_gradient_step(kva_module *m, const kva_function *loss, const kva_pass_options *options) {
  uint32_t n = m->states.len;
  kva_function *f;
  kva_value *first, **grads = KVA_NEW_ARRAY(m->arena, kva_value *, n + 3);
  KVA_TRY(make_gradients(m, loss, "grad_step", "first", options, &f, &first, grads));
  KVA_TRY(run_shard(m, f, options, options->mesh.zero > 1 ? grads : NULL, true));
  kva_builder b = kva_builder_before(m, f->graph->last);
  kva_value *is_first = kva_build2(&b, KVA_OP_less_equal, kva_const_scalar(&b, KVA_F32, 0.5), first);
  for (uint32_t i = 0; i < n && !b.failed; i++) {
    if (!grads[i]) continue;
    kva_state *sum = parameter_state(&b, m->states.data[i], grads[i], "grad", KVA_STATE_CACHE, options);
    write_state(&b, sum,
                kva_build3(&b, KVA_OP_where, is_first, grads[i], kva_add(&b, kva_read_state(&b, sum), grads[i])));
  }
  if (b.failed) return KVA_INVALID;
  return count_pass(m, loss, f);
}

static kva_status make_apply_step(kva_module *m, uint32_t n, const kva_pass_options *options) {
  kva_function *f = kva_function_create(m, "apply_step");
  kva_value *scale = kva_graph_add_input(f->graph, kva_type_scalar(m, KVA_F32), "scale");
  kva_value *lr = kva_graph_add_input(f->graph, kva_type_scalar(m, KVA_F32), "lr");
  kva_value **grads = KVA_NEW_ARRAY(m->arena, kva_value *, n + 1);
  const kva_node *ret = m->functions.data[0]->graph->last;
  kva_builder b = {.m = m, .graph = f->graph};
  b.before = kva_node_create(f->graph, NULL, ret->op, 0, NULL, 0, NULL, m->train->loc);
  for (uint32_t i = 0; i < n; i++) {
    kva_state *sum = kva_module_find_state(m, kva_arena_printf(m->arena, "%s.grad", m->states.data[i]->name));
    if (!sum || sum->kind != KVA_STATE_CACHE || sum->of != m->states.data[i]) continue;
    grads[i] = kva_read_state(&b, sum);
  }
  if (b.failed) return KVA_INVALID;
  KVA_TRY(run_shard(m, f, options, grads, false));
  for (uint32_t i = 0; i < n; i++)
    if (grads[i]) grads[i] = kva_mul(&b, grads[i], kva_cast(&b, scale, grads[i]->type->dtype));
  return b.failed ? KVA_INVALID : add_updates(m, f, n, grads, lr, options);
}

/* Processes of a mesh draw different random numbers, by the number of the micro-batch: a step in one call has none. */
static bool draws_per_process(const kva_function *loss, const kva_pass_options *options) {
  return options->mesh.data > 1 && has_dropout(loss->graph);
}

/* The loss comes first, then metrics. */
static void set_roles(kva_module *m, kva_function *loss) {
  uint32_t n = kva_graph_output_count(loss->graph);
  kva_result_role *roles = KVA_NEW_ARRAY(m->arena, kva_result_role, n + 1);
  for (uint32_t i = 0; i < n; i++) roles[i] = i ? KVA_RESULT_METRIC : KVA_RESULT_LOSS;
  loss->output_roles = roles;
}

kva_status kva_add_training(kva_module *m, const kva_pass_options *options, bool *changed) {
  kva_function *loss = kva_module_find_function(m, "loss");
  if (!loss || !m->train) return kva_error(m->diag, NULL, "'%s' has no train block; nothing to train", m->name);
  uint32_t n = m->train->first_state = m->states.len;
  set_roles(m, loss);
  m->mesh = options->mesh;
  if (kva_mesh_stage(&m->mesh) > 1) KVA_TRY(kva_run_pass(m, KVA_PASS_partition, options, changed));
  KVA_TRY(kva_shard_parameters(m, options));
  bool stages = options->mesh.pipeline > 1; /* which take one micro-batch after the other */
  kva_builder b = {.m = m};
  (void)counter_state(&b, "train.step"); /* before other counters: all forms of a step have one order of states */
  if (b.failed) return KVA_INVALID;
  bool whole = options->train != KVA_TRAIN_MICRO_BATCHES && !stages && !draws_per_process(loss, options);
  if (whole) KVA_TRY(make_whole_step(m, loss, options));
  if (!whole || options->train != KVA_TRAIN_WHOLE) {
    KVA_TRY(make_gradient_step(m, loss, options));
    KVA_TRY(make_apply_step(m, n, options));
  }
  kva_drop_shares(m);
  loss->name = "eval";
  *changed = true;
  return KVA_OK;
}
