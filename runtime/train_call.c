/* The tensors of a training program's calls: shapes from its formulas, micro-batches as slices of a batch. */
#include "runtime/train.h"

#include "runtime/base/platform.h"
#include "runtime/formula.h"
#include "runtime/session.h"

#include <stdlib.h>

static bool has_symbol(const kva_program *p, const char *name) {
  int32_t i = 0;
  while (i < p->n_symbols && strcmp(p->symbols[i], name) != 0) i++;
  return i < p->n_symbols;
}

/* The batch is "B", or, as ONNX files name it, the first extent of every input that has one. */
static bool is_batch(const kva_program *p, const char *name) {
  if (!strcmp(name, "B") || has_symbol(p, "B")) return !strcmp(name, "B");
  for (int32_t i = 0; i < p->n_inputs; i++) {
    const kva_buffer_desc *b = &p->buffers[p->inputs[i]];
    if (b->rank == 0) continue;
    const kva_formula *f = &b->dims[0];
    if (f->n != 1 || f->words[0].op != KVA_FORMULA_SYMBOL || strcmp(p->symbols[f->words[0].arg], name) != 0)
      return false;
  }
  return true;
}

static bool symbol_value(const kva_trainer *t, const kva_program *p, const char *name, int64_t rows, int64_t *out) {
  for (int i = 0; i < t->options.n_symbols; i++) {
    if (strcmp(t->options.symbols[i].name, name)) continue;
    *out = t->options.symbols[i].value;
    return true;
  }
  if (!is_batch(p, name)) return false;
  *out = rows;
  return true;
}

static kva_status eval_dim(const kva_trainer *t, const kva_program *p, const kva_formula *f, const char *input,
                           int64_t rows, kva_diag *diag, int64_t *out) {
  int64_t *symbols = calloc((size_t)p->n_symbols + 1, sizeof *symbols);
  if (!symbols) return KVA_NO_MEMORY;
  kva_status status = KVA_OK;
  for (int64_t i = 0; !status && i < f->n; i++) {
    const kva_formula_word *w = &f->words[i];
    if (w->op == KVA_FORMULA_SYMBOL && !symbol_value(t, p, p->symbols[w->arg], rows, &symbols[w->arg]))
      status = kva_error(
          diag, NULL, "%s: the shape of data input '%s' depends on symbol '%s', which has no value; give one (%s=64)",
          p->name, input, p->symbols[w->arg], p->symbols[w->arg]);
  }
  if (!status && (!kva_formula_eval(f, symbols, out) || *out < 0))
    status = kva_error(diag, NULL, "%s: a dimension of data input '%s' is negative or overflows", p->name, input);
  free(symbols);
  return status;
}

kva_status kva_train_shape(const kva_trainer *t, const kva_program *p, const kva_buffer_desc *b, int64_t rows,
                           kva_diag *diag, kva_tensor *out_tensor) {
  *out_tensor = (kva_tensor){.dtype = (kva_dtype)b->dtype, .rank = b->rank};
  for (int32_t d = 0; d < b->rank; d++) KVA_TRY(eval_dim(t, p, &b->dims[d], b->name, rows, diag, &out_tensor->dims[d]));
  return KVA_OK;
}

static kva_status create_input(const kva_trainer *t, const kva_program *p, int i, int64_t rows, int64_t micro_batches,
                               kva_diag *diag, kva_tensor *batch, kva_tensor *input) {
  const kva_buffer_desc *b = &p->buffers[p->inputs[i]];
  KVA_TRY(kva_train_shape(t, p, b, rows, diag, input));
  *batch = *input;
  if (micro_batches > 1 && (b->rank == 0 || input->dims[0] != rows))
    return kva_error(diag, NULL,
                     "%s: a step of several micro-batches needs data inputs whose first dimension is the batch; "
                     "'%s' is another",
                     p->name, b->name);
  if (micro_batches > 1 && !kva_mul_size(batch->dims[0], micro_batches, &batch->dims[0])) return KVA_NO_MEMORY;
  int64_t bytes = kva_tensor_bytes(batch);
  batch->data = bytes < 0 ? NULL : calloc((size_t)bytes + 1, 1);
  input->data = batch->data;
  if (batch->data) return KVA_OK;
  return kva_fail(diag, KVA_NO_MEMORY, NULL, "%s: no memory for input '%s'", p->name, b->name);
}

static kva_status check_scalars(const kva_program *p, int n_scalars, kva_diag *diag) {
  for (int i = 0; i < n_scalars; i++) {
    int input = p->n_inputs - 1 - i;
    const kva_buffer_desc *b = input >= 0 ? &p->buffers[p->inputs[input]] : NULL;
    if (b && b->rank == 0 && kva_dtype_is_float((kva_dtype)b->dtype)) continue;
    return kva_error(
        diag, NULL,
        "%s: the last input must be the learning rate, a floating-point scalar; found '%s' with %d dimensions", p->name,
        b ? b->name : "no input", b ? b->rank : 0);
  }
  return KVA_OK;
}

static kva_status check_outputs(const kva_program *p, bool needs_loss, kva_diag *diag) {
  if (needs_loss && kva_loss_output(p) < 0)
    return kva_error(diag, NULL, "%s: there is no output to take the loss from", p->name);
  for (int32_t i = 0; i < p->n_outputs; i++) {
    const kva_buffer_desc *b = &p->buffers[p->outputs[i]];
    if (b->rank)
      return kva_error(diag, NULL, "%s: outputs must be scalars; output %d ('%s') has %d dimensions", p->name, i,
                       b->name ? b->name : "unnamed", b->rank);
  }
  return KVA_OK;
}

static kva_status create_tensors(const kva_trainer *t, int64_t rows, int64_t micro_batches, kva_diag *diag,
                                 kva_train_call *c) {
  const kva_program *p = c->p;
  c->batch = calloc((size_t)p->n_inputs + 1, sizeof *c->batch);
  c->inputs = calloc((size_t)p->n_inputs + 1, sizeof *c->inputs);
  c->outputs = calloc((size_t)p->n_outputs + 1, sizeof *c->outputs);
  c->names = calloc((size_t)p->n_outputs + 1, sizeof *c->names);
  c->values = calloc((size_t)p->n_outputs + 1, sizeof *c->values);
  if (!c->batch || !c->inputs || !c->outputs || !c->names || !c->values) return KVA_NO_MEMORY;
  for (int32_t i = 0; i < p->n_inputs; i++)
    KVA_TRY(create_input(t, p, i, rows, i < c->n_data ? micro_batches : 1, diag, &c->batch[i], &c->inputs[i]));
  for (int32_t i = 0; i < p->n_outputs; i++) {
    const char *output = p->buffers[p->outputs[i]].name;
    c->names[i] = output ? output : "";
  }
  return KVA_OK;
}

kva_status kva_train_call_create(const kva_trainer *t, const char *program, int n_scalars, int64_t rows,
                                 int64_t micro_batches, kva_diag *diag, kva_train_call *c) {
  c->program = kva_session_program(t->s, program);
  if (c->program < 0)
    return kva_error(diag, NULL, "the artefact has no program '%s'; compile the model for training%s", program,
                     micro_batches > 1 ? " in several micro-batches a step" : "");
  c->p = kva_session_program_desc(t->s, c->program);
  KVA_TRY(check_scalars(c->p, n_scalars, diag));
  c->n_scalars = n_scalars;
  c->n_data = c->p->n_inputs - n_scalars;
  c->loss = kva_loss_output(c->p);
  KVA_TRY(check_outputs(c->p, c->n_data > 0, diag));
  return create_tensors(t, rows, micro_batches, diag, c);
}

kva_status kva_train_batch_create(const kva_trainer *t, const kva_program *p, int64_t rows, int64_t micro_batches,
                                  kva_diag *diag, kva_train_call *c) {
  c->p = p;
  c->n_data = p->n_inputs;
  return create_tensors(t, rows, micro_batches, diag, c);
}

const kva_program *kva_train_data_program(const kva_artifact *a) {
  for (int32_t i = 0; i < a->n_programs; i++)
    if (!strcmp(a->programs[i].name, "eval") || !strcmp(a->programs[i].name, "eval.0")) return &a->programs[i];
  return NULL;
}

void kva_train_call_destroy(kva_train_call *c) {
  for (int32_t i = 0; c->batch && i < c->p->n_inputs; i++) free(c->batch[i].data);
  free(c->batch);
  free(c->inputs);
  free(c->outputs);
  free(c->names);
  free(c->values);
}

void kva_train_call_clear(kva_train_call *c) {
  memset(c->values, 0, (size_t)c->p->n_outputs * sizeof *c->values);
}

void kva_train_call_set(kva_train_call *c, int scalar, double v) {
  kva_tensor *t = &c->inputs[c->n_data + scalar];
  kva_store_f64(t->dtype, t->data, 0, v);
}

int64_t kva_train_pinned_rows(const kva_program *p) {
  const kva_buffer_desc *b = p->n_inputs ? &p->buffers[p->inputs[0]] : NULL;
  if (!b || b->rank == 0) return 0;
  const kva_formula *f = &b->dims[0];
  return f->n == 1 && f->words[0].op == KVA_FORMULA_CONST ? f->words[0].arg : 0;
}

double kva_train_scalar(const kva_tensor *t) {
  return kva_dtype_is_float(t->dtype) ? kva_load_f64(t->dtype, t->data, 0) : (double)kva_load_i64(t->dtype, t->data, 0);
}

kva_status kva_train_call_run(const kva_trainer *t, kva_train_call *c, int64_t k, bool guarded, kva_diag *diag) {
  for (int i = 0; i < c->n_data; i++)
    c->inputs[i].data = (char *)c->batch[i].data + k * kva_tensor_bytes(&c->inputs[i]);
  for (int32_t i = 0; i < c->p->n_outputs; i++) c->outputs[i].data = NULL;
  t->s->guarded = guarded;
  kva_status status = kva_session_run(t->s, c->program, c->inputs, c->outputs);
  t->s->guarded = false;
  if (status == KVA_NOT_FINITE) return status;
  if (status) return kva_fail(diag, status, NULL, "%s", kva_session_error(t->s));
  for (int32_t i = 0; i < c->p->n_outputs; i++) c->values[i] += kva_train_scalar(&c->outputs[i]);
  return KVA_OK;
}
