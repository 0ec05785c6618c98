/* Values for parameters from elsewhere, low-rank updates merged: kva_set_weights in tune.h. */
#include "passes/passes_internal.h"
#include "passes/quantize.h"
#include "passes/tune.h"

#include <math.h>

typedef struct source {
  kva_module *m;
  kva_find_weight find;
  void *user;
  int64_t used;
} source;

static const kva_tensor_data *find(source *s, const char *name, const char *suffix) {
  const kva_tensor_data *t = s->find(s->user, kva_arena_printf(s->m->arena, "%s%s", name, suffix));
  s->used += t != NULL;
  return t;
}

/* Floats of 8 bits have scales beside them, which a conversion would forget. */
static bool is_plain_float(kva_dtype t) {
  return kva_dtype_is_float(t) && kva_dtype_bits(t) >= 16;
}

static bool type_fits(const kva_type *type, const kva_tensor_data *t) {
  bool converts = is_plain_float(type->dtype) && is_plain_float(t->dtype);
  if ((t->dtype != type->dtype && !converts) || t->rank != type->rank) return false;
  for (uint32_t d = 0; d < t->rank; d++)
    if (!kva_expr_is(type->dims[d], t->dims[d])) return false;
  return true;
}

static kva_status check_type(source *s, const char *name, const kva_type *type, const kva_tensor_data *t) {
  if (type_fits(type, t)) return KVA_OK;
  kva_text want = {0}, has = {0};
  kva_type_print(type, &want);
  kva_text_add(&has, "%s[", kva_dtype_name(t->dtype));
  for (uint32_t d = 0; d < t->rank; d++) kva_text_add(&has, "%s%lld", d ? ", " : "", (long long)t->dims[d]);
  kva_status status =
      kva_error(s->m->diag, NULL, "weights: tensor '%s' is %s], the model's parameter %s", name, has.data, want.data);
  kva_text_free(&want);
  kva_text_free(&has);
  return status;
}

/* No number becomes infinite. */
static kva_status store(source *s, const char *name, kva_dtype to, void *data, int64_t i, double v) {
  kva_store_f64(to, data, i, v);
  if (!isfinite(v) || isfinite(kva_load_f64(to, data, i))) return KVA_OK;
  return kva_error(s->m->diag, NULL, "weights: tensor '%s' has the number %g, which the model's type %s cannot hold",
                   name, v, kva_dtype_name(to));
}

/* w + scale * a b, sums in double, rounded once to the model's type; the model has no low-rank update of its own, or it
 * reads a and b itself. */
static kva_status merge(source *s, const char *name, const kva_tensor_data *w, kva_dtype to, void *out) {
  if (kva_module_find_state(s->m, kva_arena_printf(s->m->arena, "%s" KVA_LORA_A, name))) return KVA_OK;
  const kva_tensor_data *a = find(s, name, KVA_LORA_A), *b = find(s, name, KVA_LORA_B);
  const kva_tensor_data *scale = find(s, name, KVA_LORA_SCALE);
  if (!a && !b && !scale) return KVA_OK;
  bool fits = a && b && scale && w->rank == 2 && a->rank == 2 && b->rank == 2 && a->dims[0] == w->dims[0] &&
              b->dims[1] == w->dims[1] && a->dims[1] == b->dims[0] && kva_dtype_is_float(a->dtype) &&
              kva_dtype_is_float(b->dtype) && kva_dtype_is_float(scale->dtype) && scale->bytes > 0;
  if (!fits)
    return kva_error(s->m->diag, NULL,
                     "weights: the low-rank update of '%s' needs lora_a [rows, rank], lora_b [rank, "
                     "columns] and lora_scale of a float type",
                     name);
  double factor = kva_load_f64(scale->dtype, scale->data, 0);
  int64_t rank = a->dims[1], columns = w->dims[1];
  for (int64_t i = 0; i < w->dims[0]; i++)
    for (int64_t j = 0; j < columns; j++) {
      double sum = 0;
      for (int64_t k = 0; k < rank; k++)
        sum += kva_load_f64(a->dtype, a->data, i * rank + k) * kva_load_f64(b->dtype, b->data, k * columns + j);
      double v = kva_load_f64(w->dtype, w->data, i * columns + j) + factor * sum;
      KVA_TRY(store(s, name, to, out, i * columns + j, v));
    }
  return KVA_OK;
}

static kva_tensor_data *with_data(source *s, const kva_tensor_data *t, kva_dtype dtype, const void *data,
                                  int64_t bytes) {
  kva_tensor_data *copy = KVA_NEW(s->m->arena, kva_tensor_data);
  const int64_t *dims = kva_arena_memdup(s->m->arena, t->dims, t->rank * sizeof *t->dims);
  *copy = (kva_tensor_data){.dtype = dtype, .rank = t->rank, .dims = dims, .data = data, .bytes = bytes, .spare = true};
  return copy;
}

/* A copy in the module's arena; NULL for NULL. */
static kva_tensor_data *kept(source *s, const kva_tensor_data *t) {
  return t ? with_data(s, t, t->dtype, kva_arena_memdup(s->m->arena, t->data, (size_t)t->bytes), t->bytes) : NULL;
}

/* A copy in another type. */
static kva_status converted(source *s, const char *name, kva_dtype to, const kva_tensor_data *t,
                            kva_tensor_data **out) {
  int64_t n = kva_tensor_elements(t), bytes = n * (kva_dtype_bits(to) / 8);
  void *data = kva_arena_alloc(s->m->arena, (size_t)bytes);
  for (int64_t i = 0; i < n; i++) KVA_TRY(store(s, name, to, data, i, kva_load_f64(t->dtype, t->data, i)));
  *out = with_data(s, t, to, data, bytes);
  return KVA_OK;
}

/* The new value of `name`, in the module's arena; NULL: there is none. */
static kva_status value_for(source *s, const char *name, const kva_type *type, const kva_tensor_data **out) {
  const kva_tensor_data *t = find(s, name, "");
  *out = NULL;
  if (!t) return KVA_OK;
  KVA_TRY(check_type(s, name, type, t));
  kva_tensor_data *copy = NULL;
  if (t->dtype == type->dtype)
    copy = kept(s, t);
  else
    KVA_TRY(converted(s, name, type->dtype, t, &copy));
  *out = copy;
  return merge(s, name, t, copy->dtype, (void *)(uintptr_t)copy->data);
}

/* ---- quantised tensors ------------------------------------------------------------------------------------------- */

typedef struct quantized {
  const kva_tensor_data *codes, *scale, *zero;
} quantized;

/* What the source has of `name`, in the module's arena; false: nothing, or not quantised. */
static bool find_quantized(source *s, const char *name, quantized *out) {
  const char *scale = kva_arena_printf(s->m->arena, "%s" KVA_QUANTIZED_SCALE, name);
  bool own = kva_module_find_state(s->m, scale) != NULL; /* a norm's, of a layer with this name */
  const kva_tensor_data *codes = own ? NULL : s->find(s->user, name);
  if (!codes || kva_dtype_is_float(codes->dtype) || !s->find(s->user, scale)) return false;
  out->codes = kept(s, find(s, name, ""));
  out->scale = kept(s, find(s, name, KVA_QUANTIZED_SCALE));
  out->zero = kept(s, find(s, name, KVA_QUANTIZED_ZERO));
  return true;
}

static kva_status refuse_quantized(source *s, const char *name) {
  return kva_fail(
      s->m->diag, KVA_UNSUPPORTED, NULL,
      "weights: tensor '%s' is quantised, and the model's parameter is no matrix that only products read, as "
      "second operand, and lookups of rows",
      name);
}

/* The quantised matrix in place of v, the result of n. */
static kva_status become_quantized(source *s, kva_node *n, const char *name, const quantized *q) {
  uint32_t axis = 0;
  kva_value *v = &n->results[0];
  if (!kva_readers_of(v, &axis)) return refuse_quantized(s, name);
  kva_builder b = kva_builder_before(s->m, n);
  kva_value *y = kva_build_quantized(&b, name, v->type, axis, q->codes, q->scale, q->zero);
  if (!y || b.failed) return KVA_INVALID;
  kva_value_replace_all_uses(v, y);
  kva_node_remove(n);
  return KVA_OK;
}

/* Calls replace(user, n) for each read n of the state that has uses. Then the state goes. */
static kva_status replace_reads(kva_module *m, kva_state *state, kva_status (*replace)(void *user, kva_node *n),
                                void *user) {
  for (uint32_t f = 0; f < m->functions.len; f++)
    for (kva_node *n = m->functions.data[f]->graph->first, *next; n; n = next) {
      next = n->next;
      if (kva_state_read_by(n) != state) continue;
      if (n->results[0].uses)
        KVA_TRY(replace(user, n));
      else
        kva_node_remove(n);
    }
  kva_module_remove_state(m, state);
  return KVA_OK;
}

typedef struct quantizing {
  source *s;
  const char *name;
  const quantized *q;
} quantizing;

static kva_status quantize_read(void *user, kva_node *n) {
  const quantizing *x = user;
  return become_quantized(x->s, n, x->name, x->q);
}

static kva_status quantize_state(source *s, kva_state *state, const quantized *q) {
  uint32_t axis = 0;
  if (!kva_readers_of_state(s->m, state, &axis)) return refuse_quantized(s, state->name);
  return replace_reads(s->m, state, quantize_read, &(quantizing){s, state->name, q});
}

typedef struct widening {
  kva_module *m;
  const kva_tensor_data *data;
} widening;

static kva_status widen_read(void *user, kva_node *n) {
  const widening *w = user;
  kva_value *read = &n->results[0];
  kva_builder b = kva_builder_before(w->m, n);
  kva_value *v = kva_cast(&b, kva_const_tensor(&b, w->data), read->type->dtype);
  if (b.failed) return KVA_INVALID;
  v->name = ((const kva_state_read_attrs *)n->attrs)->state->name;
  kva_value_replace_all_uses(read, v);
  kva_node_remove(n);
  return KVA_OK;
}

kva_status kva_set_constant(kva_module *m, kva_state *state, const kva_tensor_data *data) {
  return replace_reads(m, state, widen_read, &(widening){m, data});
}

kva_status kva_set_constants(kva_module *m) {
  for (uint32_t i = 0; i < m->states.len;) {
    kva_state *s = m->states.data[i];
    uint32_t axis;
    bool matrix = s->kind == KVA_STATE_PARAM && s->init == KVA_INIT_DATA && s->type->dtype == KVA_F32 &&
                  kva_readers_of_state(m, s, &axis) == KVA_READ_BY_PRODUCTS;
    if (matrix) KVA_TRY(kva_set_constant(m, s, s->data));
    i += !matrix;
  }
  return KVA_OK;
}

static kva_status set_state(source *s, kva_state *state, bool *removed) {
  quantized q;
  const kva_tensor_data *t;
  *removed = find_quantized(s, state->name, &q);
  if (*removed) return quantize_state(s, state, &q);
  KVA_TRY(value_for(s, state->name, state->type, &t));
  if (!t) return KVA_OK;
  state->init = KVA_INIT_DATA;
  state->data = t;
  state->of = NULL;
  return KVA_OK;
}

static kva_status set_states(source *s) {
  for (uint32_t i = 0; i < s->m->states.len;) {
    bool removed = false;
    if (s->m->states.data[i]->kind == KVA_STATE_PARAM) KVA_TRY(set_state(s, s->m->states.data[i], &removed));
    i += !removed;
  }
  return KVA_OK;
}

static kva_status set_constant(source *s, kva_node *n) {
  const char *name = n->results[0].name;
  const kva_tensor_data *t;
  quantized q;
  if (find_quantized(s, name, &q)) return become_quantized(s, n, name, &q);
  KVA_TRY(value_for(s, name, n->results[0].type, &t));
  if (!t) return KVA_OK;
  kva_builder b = kva_builder_before(s->m, n);
  kva_value *v = kva_const_tensor(&b, t);
  v->name = name;
  kva_value_replace_all_uses(&n->results[0], v);
  kva_node_remove(n);
  return KVA_OK;
}

/* Branches and bodies of loops have constants of their own for what they read of the graph around them. */
static kva_status set_constants(source *s, kva_graph *g) {
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    for (uint32_t i = 0; i < n->n_graphs; i++) KVA_TRY(set_constants(s, n->graphs[i]));
    if (kva_is_named_constant(n)) KVA_TRY(set_constant(s, n));
  }
  return KVA_OK;
}

kva_status kva_set_weights(kva_module *m, kva_find_weight find_weight, void *user, int64_t *out_used) {
  source s = {.m = m, .find = find_weight, .user = user};
  KVA_TRY(set_states(&s));
  KVA_TRY(set_constants(&s, m->functions.data[0]->graph));
  *out_used = s.used;
  return KVA_OK;
}
