#include "tools/verify/simulated.h"
#include "ops/gather_grad.h"
#include "ops/ids.h"

#include <stdlib.h>

enum { MAX_PARAMS = 80, MAX_MAPS = 8 };

typedef struct step {
  kva_node *node;
  kva_kernel *kernel;
  int32_t number;
} step;

typedef struct run {
  kva_ptx_run *options;
  kva_arena *arena;
  kva_module *m;
  kva_diag *diag;
  kva_codegen *cg;
  kva_ptx_memory *memory;
  kva_ptx_module *module;
  char *text;
  KVA_VEC(const kva_expr *) symbols;
  KVA_VEC(int64_t) sizes;
  KVA_VEC(step) steps;
  KVA_VEC(void *) owned;
  void **data; /* by value id */
} run;

static bool lookup(void *user, const kva_expr *symbol, int64_t *out_v) {
  const run *r = user;
  for (uint32_t i = 0; i < r->symbols.len; i++) {
    if (r->symbols.data[i] != symbol) continue;
    *out_v = r->sizes.data[i];
    return true;
  }
  return false;
}

static int64_t evaluate(run *r, const kva_expr *e) {
  int64_t v = -1;
  KVA_ASSERT(kva_expr_eval(e, lookup, r, &v));
  return v;
}

static void bind_symbols(run *r, const kva_type *t, const kva_ref_tensor *w) {
  for (uint32_t d = 0; d < t->rank; d++) {
    int64_t known;
    if (t->dims[d]->kind != KVA_EXPR_SYMBOL || lookup(r, t->dims[d], &known)) continue;
    KVA_PUSH(r->arena, &r->symbols, t->dims[d]);
    KVA_PUSH(r->arena, &r->sizes, w->dims[d]);
  }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static int64_t bytes_of(run *r, const kva_type *t) {
  int64_t n = 1, bytes;
  for (uint32_t d = 0; d < t->rank; d++) n *= evaluate(r, t->dims[d]);
  KVA_ASSERT(kva_dtype_bytes(t->dtype, n, &bytes));
  return bytes;
}

/* Fills memory with a pattern, to reveal elements that nothing stores. */
static kva_status allocate(run *r, const kva_value *v, bool writable) {
  size_t bytes = (size_t)bytes_of(r, v->type);
  void *data = aligned_alloc(64, bytes / 64 * 64 + 64);
  if (!data) return KVA_NO_MEMORY;
  KVA_PUSH(r->arena, &r->owned, data);
  memset(data, KVA_PTX_UNWRITTEN, bytes);
  r->data[v->id] = data;
  return kva_ptx_memory_add(r->memory, data, bytes, writable, v->name ? v->name : "buffer");
}

static kva_status add_constant(run *r, const kva_node *n) {
  const kva_tensor_data *t = ((const kva_constant_attrs *)n->attrs)->value;
  KVA_TRY(allocate(r, &n->results[0], false));
  memcpy(r->data[n->results[0].id], t->data, (size_t)bytes_of(r, n->results[0].type));
  return KVA_OK;
}

static kva_status load_inputs(run *r, kva_graph *g, const kva_ref_tensor *const *inputs) {
  for (uint32_t i = 0; i < g->inputs.len; i++) bind_symbols(r, g->inputs.data[i]->type, inputs[i]);
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    const kva_value *v = g->inputs.data[i];
    KVA_TRY(allocate(r, v, r->options->in_place));
    kva_ref_tensor_to_data(inputs[i], r->data[v->id]);
  }
  return KVA_OK;
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static void print_kernel(const kva_kernel *k) {
  kva_text text = {0};
  kva_kernel_print(k, &text);
  fputs(text.data, stderr);
  kva_text_free(&text);
}

static kva_status compile_node(run *r, kva_node *n) {
  const kva_target *target = kva_codegen_target(r->cg);
  step s = {n, NULL, -1};
  KVA_TRY(kva_codegen_kernel(r->arena, n, target, &(kva_pass_control){.verify_each = true}, &s.kernel));
  if (getenv("KVA_TEST_PRINT")) print_kernel(s.kernel);
  KVA_TRY(kva_codegen_add(r->cg, s.kernel, r->symbols.len, r->symbols.data, &s.number));
  KVA_PUSH(r->arena, &r->steps, s);
  return KVA_OK;
}

static bool is_alias(const run *r, const kva_node *n) {
  return r->options->alias_views && n->op->traits & KVA_ALIAS;
}

static kva_status compile(run *r, kva_graph *g) {
  for (kva_node *n = g->first; n; n = n->next) {
    if ((n->op->traits & KVA_RETURN) || is_alias(r, n)) continue;
    KVA_TRY(kva_is(n, KVA_OP_constant) ? add_constant(r, n) : compile_node(r, n));
  }
  r->options->kernels += (uint32_t)kva_codegen_kernel_count(r->cg);
  return KVA_OK;
}

static kva_status load_module(run *r) {
  size_t size;
  KVA_TRY(kva_codegen_emit(r->cg, "ptx", &r->text, &size));
  if (getenv("KVA_TEST_PRINT")) fputs(r->text, stderr);
  if (r->options->visit_text) r->options->visit_text(r->options->visitor, r->text);
  return kva_ptx_module_create(r->text, size, "ptx", r->diag, &r->module);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static bool seen_before(const kva_node *n, uint32_t i) {
  for (uint32_t k = 0; k < i; k++) {
    if (n->operands[k].value == n->operands[i].value) return true;
  }
  return false;
}

static void add_traffic(kva_ptx_traffic *t, const kva_ptx_counters *c) {
  t->load_sectors += c->global_load_sectors;
  t->store_sectors += c->global_store_sectors;
  t->wavefronts += c->shared_wavefronts;
  t->ideal_wavefronts += c->shared_wavefronts_ideal;
  t->instructions += c->thread_instructions;
}

static void visit(run *r, const step *s, kva_ptx_step *launch) {
  launch->text = r->text;
  launch->memory = r->memory;
  launch->n_results = s->node->n_results;
  for (uint32_t i = 0; i < s->node->n_operands; i++) {
    const kva_value *v = s->node->operands[i].value;
    if (v && !seen_before(s->node, i)) launch->operand_bytes += (size_t)bytes_of(r, v->type);
  }
  for (uint32_t i = 0; i < s->node->n_results; i++) {
    const kva_value *v = &s->node->results[i];
    launch->results[i].data = r->data[v->id];
    launch->results[i].bytes = (size_t)bytes_of(r, v->type);
  }
  r->options->visit(r->options->visitor, launch);
}

static void clear_results(run *r, const step *s) {
  for (uint32_t i = 0; i < s->node->n_results; i++) {
    const kva_value *v = &s->node->results[i];
    memset(r->data[v->id], 0, (size_t)bytes_of(r, v->type));
  }
}

static kva_status launch_step(run *r, const step *s, const void *const *params, uint32_t n_params) {
  int64_t blocks = evaluate(r, kva_codegen_grid(s->kernel));
  const char *name = kva_codegen_kernel_name(r->cg, s->number);
  bool skipped = r->options->skips && r->options->skips(name);
  if (skipped) clear_results(r, s);
  if (!blocks || skipped) return KVA_OK;
  const kva_ptx_kernel *kernel = kva_ptx_module_get_kernel(r->module, name);
  KVA_ASSERT(kernel);
  kva_launch launch = kva_codegen_launch(r->cg, s->number);
  kva_ptx_dim3 grid = {kva_ptx_grid(blocks, launch.cooperating), 1, 1}, block = {launch.threads, 1, 1};
  kva_ptx_report report;
  kva_ptx_options options = {.pool = r->options->pool,
                             .cooperative = launch.cooperating > 0,
                             .lazy = r->options->lazy,
                             .check_global = !r->options->pool,
                             .schedule_seed = r->options->launches};
  KVA_TRY(kva_ptx_launch(kernel, r->memory, grid, block, launch.dynamic_bytes, params, n_params, &options, r->diag,
                         &report));
  r->options->launches++;
  r->options->counters = report.counters;
  add_traffic(&r->options->traffic, &report.counters);
  uint32_t findings = report.n_findings;
  if (findings) kva_ptx_report_print_findings(&report, "ptx", stderr);
  kva_ptx_report_free(&report);
  kva_ptx_step done = {.kernel = name,
                       .grid = grid,
                       .block = block,
                       .dynamic_bytes = launch.dynamic_bytes,
                       .cooperative = options.cooperative,
                       .params = params,
                       .n_params = n_params};
  if (!findings && r->options->visit) visit(r, s, &done);
  return findings ? kva_error(r->diag, NULL, "%u findings of the simulator", findings) : KVA_OK;
}

/* Parameters of the kernel are the node's operands, each once, then its results. */
static kva_status encode_map(run *r, const kva_ktensor_map *m, const void *const *params, unsigned char *out) {
  kva_ptxsim_map map = {.dtype = m->buf->dtype, .rank = m->rank, .swizzle = (uint32_t)m->swizzle};
  memcpy(&map.address, params[m->buf->id], sizeof map.address);
  for (uint32_t d = 0; d < m->rank; d++) {
    map.dims[d] = (uint64_t)evaluate(r, m->dims[d]);
    if (d) map.strides[d] = (uint64_t)evaluate(r, m->strides[d]);
    map.box[d] = (uint32_t)m->box[d];
  }
  return kva_ptxsim_encode_map(&map, r->diag, out);
}

/* Where the value of a chain of reshapes lies. */
static const kva_value *storage_of(const run *r, const kva_value *v) {
  while (v->def && is_alias(r, v->def)) v = v->def->operands[0].value;
  return v;
}

/* What a kernel that updates operand 0 leaves as it is. */
static void copy_operand(run *r, kva_node *n) {
  const void *operand = r->data[storage_of(r, kva_operand(n, 0))->id];
  memcpy(r->data[n->results[0].id], operand, (size_t)bytes_of(r, n->results[0].type));
}

static kva_status run_step(run *r, const step *s) {
  const void *params[MAX_PARAMS];
  unsigned char maps[MAX_MAPS][KVA_PTXSIM_MAP_BYTES];
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->node->n_operands; i++) {
    const kva_value *v = s->node->operands[i].value;
    if (v && !seen_before(s->node, i)) params[n++] = &r->data[storage_of(r, v)->id];
  }
  for (uint32_t i = 0; i < s->node->n_results; i++) {
    if (r->options->in_place && !i)
      r->data[s->node->results[0].id] = r->data[s->node->operands[0].value->id];
    else
      KVA_TRY(allocate(r, &s->node->results[i], true));
    params[n++] = &r->data[s->node->results[i].id];
  }
  if (s->node->op->traits & KVA_UPDATES_PART && !r->options->in_place) copy_operand(r, s->node);
  for (uint32_t i = 0; i < r->symbols.len; i++) params[n++] = &r->sizes.data[i];
  r->options->maps = s->kernel->maps.len;
  if (!evaluate(r, kva_codegen_grid(s->kernel))) return KVA_OK;
  for (uint32_t i = 0; i < s->kernel->maps.len; i++) {
    KVA_ASSERT(i < MAX_MAPS);
    KVA_TRY(encode_map(r, &s->kernel->maps.data[i], params, maps[i]));
    params[n++] = maps[i];
  }
  KVA_ASSERT(n <= MAX_PARAMS);
  return launch_step(r, s, params, n);
}

static kva_status execute(run *r, kva_graph *g, const kva_ref_tensor *const *inputs) {
  KVA_TRY(load_inputs(r, g, inputs));
  KVA_TRY(compile(r, g));
  KVA_TRY(load_module(r));
  for (uint32_t i = 0; i < r->steps.len; i++) KVA_TRY(run_step(r, &r->steps.data[i]));
  return KVA_OK;
}

static kva_ref_tensor *read_output(run *r, const kva_value *v) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < v->type->rank; d++) dims[d] = evaluate(r, v->type->dims[d]);
  return kva_ref_tensor_from_data(v->type->dtype, v->type->rank, dims, r->data[storage_of(r, v)->id]);
}

kva_status kva_run_ptx(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                       kva_ref_tensor **outputs, kva_diag *diag) {
  run r = {.options = user, .arena = kva_arena_create(), .m = m, .diag = diag, .memory = kva_ptx_memory_create()};
  const kva_target_options target = {.arch = r.options->arch, .opt_level = 2, .cache = r.options->cache};
  kva_status status = kva_codegen_create(&target, diag, &r.cg);
  /* As a pass for GPUs does, which the module may not have seen. */
  if (status == KVA_OK) kva_gather_grads_sort(m, f->graph, kva_codegen_target(r.cg)->multiprocessors);
  r.data = KVA_NEW_ARRAY(r.arena, void *, m->next_value_id);
  if (status == KVA_OK) status = execute(&r, f->graph, inputs);
  for (uint32_t i = 0; status == KVA_OK && i < kva_graph_output_count(f->graph); i++)
    outputs[i] = read_output(&r, kva_graph_output(f->graph, i));
  kva_codegen_destroy(r.cg);
  kva_ptx_module_destroy(r.module);
  free(r.text);
  kva_ptx_memory_destroy(r.memory);
  for (uint32_t i = 0; i < r.owned.len; i++) free(r.owned.data[i]);
  kva_arena_destroy(r.arena);
  return status;
}
