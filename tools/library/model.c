/* Models: where they come from, and what goes in and out of them. */
#include "tools/driver/trained.h"
#include "tools/library/library.h"

#include <stdlib.h>

/* ---- the source -------------------------------------------------------------------------------------------------- */

static const kva_define *copy_defines(kva_arena *arena, uint32_t n, const kva_define *from) {
  kva_define *copy = KVA_NEW_ARRAY(arena, kva_define, n + 1);
  for (uint32_t i = 0; i < n; i++)
    copy[i] = (kva_define){kva_arena_strdup(arena, from[i].name), kva_arena_strdup(arena, from[i].value)};
  return copy;
}

static kva_model_source copy_source(kva_arena *arena, const kva_model_source *from) {
  kva_model_source s = *from;
  s.path = kva_arena_strdup(arena, from->path);
  s.weights = from->weights ? kva_arena_strdup(arena, from->weights) : NULL;
  s.load.defines = copy_defines(arena, from->load.n_defines, from->load.defines);
  s.load.pins = copy_defines(arena, from->load.n_pins, from->load.pins);
  return s;
}

static kva_status load(const kva_model_source *s, kva_diag *diag, kva_module **out) {
  kva_status status = s->data ? kva_load_bytes(s->data, s->size, s->path, &s->load, diag, out)
                              : kva_load_model(s->path, &s->load, diag, out);
  KVA_TRY(status);
  if (s->weights) status = kva_load_weights(*out, s->weights, diag);
  if (!status) return KVA_OK;
  kva_module_destroy(*out);
  *out = NULL;
  return status;
}

/* ---- ports ------------------------------------------------------------------------------------------------------- */

static const char *text_of(const kva_expr *e, kva_arena *arena) {
  kva_text text = {0};
  kva_expr_print(e, &text);
  const char *copy = kva_arena_strdup(arena, text.data ? text.data : "?");
  kva_text_free(&text);
  return copy;
}

static void port_of_type(const kva_type *type, const char *name, kva_arena *arena, kvasir_port *out) {
  *out = (kvasir_port){
      .name = kva_arena_strdup(arena, name ? name : ""), .type = (int32_t)type->dtype, .rank = (int32_t)type->rank};
  for (uint32_t d = 0; d < type->rank; d++) {
    if (kva_expr_is_const(type->dims[d], &out->dims[d])) continue;
    out->dims[d] = -1;
    out->symbols[d] = text_of(type->dims[d], arena);
  }
}

static void describe(kvasir_model *m) {
  const kva_function *f = m->module->functions.data[0];
  m->name = kva_arena_strdup(m->arena, m->module->name);
  m->n_inputs = f->graph->inputs.len;
  m->n_outputs = kva_graph_output_count(f->graph);
  m->inputs = KVA_NEW_ARRAY(m->arena, kvasir_port, m->n_inputs + 1);
  m->outputs = KVA_NEW_ARRAY(m->arena, kvasir_port, m->n_outputs + 1);
  for (uint32_t i = 0; i < m->n_inputs; i++) {
    const kva_value *v = f->graph->inputs.data[i];
    port_of_type(v->type, v->name, m->arena, &m->inputs[i]);
  }
  for (uint32_t i = 0; i < m->n_outputs; i++) {
    const kva_value *v = kva_graph_output(f->graph, i);
    port_of_type(v->type, f->output_names ? f->output_names[i] : v->name, m->arena, &m->outputs[i]);
  }
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

kva_status kva_model_open(const kva_model_source *source, kva_diag *diag, kvasir_model **out_model) {
  *out_model = NULL;
  kva_module *module;
  KVA_TRY(load(source, diag, &module));
  kvasir_model *m = calloc(1, sizeof *m);
  if (!m) {
    kva_module_destroy(module);
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a model");
  }
  m->module = module;
  m->arena = kva_arena_create();
  m->source = copy_source(m->arena, source);
  describe(m);
  *out_model = m;
  return KVA_OK;
}

/* Modules keep the diag that they report to: it must be that of the call that works on them. */
kva_status kva_model_take(kvasir_model *m, kva_diag *diag, kva_module **out_module) {
  *out_module = m->module;
  m->module = NULL;
  if (!*out_module) return load(&m->source, diag, out_module);
  (*out_module)->diag = diag;
  return KVA_OK;
}

/* ---- kvasir.h ---------------------------------------------------------------------------------------------------- */

typedef struct open_job {
  kva_model_source source;
  const kvasir_model_options *options;
  kvasir_model **out;
} open_job;

static kva_status settings(size_t n, const kvasir_setting *from, const char *what, kva_arena *arena, kva_diag *diag,
                           uint32_t *out_n, const kva_define **out) {
  if (n && !from) return kva_error(diag, NULL, "%zu %s are announced, and none given", n, what);
  kva_define *d = KVA_NEW_ARRAY(arena, kva_define, n + 1);
  for (size_t i = 0; i < n; i++) {
    if (!from[i].name || !from[i].value) return kva_error(diag, NULL, "%s %zu lacks a name or a value", what, i);
    d[i] = (kva_define){from[i].name, from[i].value};
  }
  *out_n = (uint32_t)n;
  *out = d;
  return KVA_OK;
}

/* kvasir.h has no strings. */
static kva_status refuse_strings(size_t n, const kvasir_port *ports, const char *what, const char *path,
                                 kva_diag *diag) {
  for (size_t i = 0; i < n; i++)
    if (ports[i].type == KVA_STRING)
      return kva_fail(diag, KVA_UNSUPPORTED, &(kva_loc){.file = path},
                      "%s '%s' is of strings, which libkvasir does not take; `kvasir run` does", what, ports[i].name);
  return KVA_OK;
}

static kva_status open_public(const kva_model_source *source, kva_diag *diag, kvasir_model **out) {
  kvasir_model *m;
  KVA_TRY(kva_model_open(source, diag, &m));
  kva_status status = refuse_strings(m->n_inputs, m->inputs, "input", source->path, diag);
  if (!status) status = refuse_strings(m->n_outputs, m->outputs, "output", source->path, diag);
  if (status)
    kvasir_model_destroy(m);
  else
    *out = m;
  return status;
}

static kva_status open_with(open_job *j, kva_arena *arena, kva_diag *diag) {
  const kvasir_model_options *o = j->options;
  kva_load_options *load = &j->source.load;
  if (o) {
    KVA_TRY(settings(o->n_defines, o->defines, "defines", arena, diag, &load->n_defines, &load->defines));
    KVA_TRY(settings(o->n_pins, o->pins, "pins", arena, diag, &load->n_pins, &load->pins));
    load->free_batch = o->free_batch != 0;
    load->inference = o->inference != 0;
    j->source.weights = o->weights;
  }
  return open_public(&j->source, diag, j->out);
}

static kva_status open_model(void *job, kva_diag *diag) {
  open_job *j = job;
  if (!j->source.path) return kva_error(diag, NULL, "the path of the model is a null pointer");
  kva_arena *arena = kva_arena_create();
  kva_status status = open_with(j, arena, diag);
  kva_arena_destroy(arena);
  return status;
}

kvasir_status kvasir_model_open(const char *path, const kvasir_model_options *options, kvasir_model **out_model,
                                kvasir_messages **out_messages) {
  if (!out_model) return kva_library_no_place(out_messages);
  *out_model = NULL;
  open_job j = {{.path = path}, options, out_model};
  return kva_library_call(open_model, &j, out_messages);
}

kvasir_status kvasir_model_open_bytes(const void *data, size_t size, const char *name,
                                      const kvasir_model_options *options, kvasir_model **out_model,
                                      kvasir_messages **out_messages) {
  if (!out_model) return kva_library_no_place(out_messages);
  *out_model = NULL;
  open_job j = {{.path = name ? name : "model", .data = data ? data : "", .size = data ? size : 0}, options, out_model};
  return kva_library_call(open_model, &j, out_messages);
}

void kvasir_model_destroy(kvasir_model *m) {
  if (!m) return;
  kva_module_destroy(m->module);
  kva_arena_destroy(m->arena);
  free(m);
}

const char *kvasir_model_name(const kvasir_model *m) {
  return m ? m->name : "";
}

size_t kvasir_model_input_count(const kvasir_model *m) {
  return m ? m->n_inputs : 0;
}

size_t kvasir_model_output_count(const kvasir_model *m) {
  return m ? m->n_outputs : 0;
}

const kvasir_port *kvasir_model_input(const kvasir_model *m, size_t i) {
  return i < kvasir_model_input_count(m) ? &m->inputs[i] : NULL;
}

const kvasir_port *kvasir_model_output(const kvasir_model *m, size_t i) {
  return i < kvasir_model_output_count(m) ? &m->outputs[i] : NULL;
}
