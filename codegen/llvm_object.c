/* Ahead of time: an artefact's tables as constants beside its kernels, in one relocatable object.
 *
 * Every table is a private constant with the C layout of runtime/abi.h (checked against sizeof); strings, formulas and
 * tensors are deduplicated. Everything except the exported functions is local, so several models fit into one program.
 * The object depends only on the artefact: no paths, no times, tables in the artefact's order. */
#include "codegen/llvm_internal.h"

enum { DATA_ALIGNMENT = 64 };

typedef struct writer {
  kva_codegen *cg;
  bool is_gpu; /* kernels are text */
  LLVMTypeRef ptr, i32, i64, f64;
  kva_map *strings, *formulas, *data; /* -> LLVMValueRef */
} writer;

/* ---- constants --------------------------------------------------------------------------------------------------- */

static LLVMValueRef c32(const writer *w, int64_t v) {
  return LLVMConstInt(w->i32, (uint64_t)v, true);
}

static LLVMValueRef c64(const writer *w, int64_t v) {
  return LLVMConstInt(w->i64, (uint64_t)v, true);
}

static LLVMValueRef null(const writer *w) {
  return LLVMConstNull(w->ptr);
}

/* A struct in C's layout, whose size must equal C's. */
static LLVMValueRef record(const writer *w, size_t size, unsigned n, LLVMValueRef *fields) {
  LLVMValueRef v = LLVMConstStructInContext(w->cg->module->ctx, fields, n, false);
  KVA_ASSERT(LLVMABISizeOfType(w->cg->module->layout, LLVMTypeOf(v)) == size);
  return v;
}
#define RECORD(w, type, fields) record((w), sizeof(type), sizeof(fields) / sizeof *(fields), (fields))

static LLVMValueRef constant(const writer *w, LLVMValueRef value, unsigned alignment) {
  LLVMValueRef g = LLVMAddGlobal(w->cg->module->ir, LLVMTypeOf(value), "");
  LLVMSetInitializer(g, value);
  LLVMSetGlobalConstant(g, true);
  LLVMSetLinkage(g, LLVMPrivateLinkage);
  LLVMSetAlignment(g, alignment);
  return g;
}

/* A table in memory; null if it is empty. */
static LLVMValueRef table(const writer *w, int64_t n, LLVMValueRef *items) {
  return n > 0 ? constant(w, LLVMConstArray2(LLVMTypeOf(items[0]), items, (uint64_t)n), 16) : null(w);
}

/* Memory for n items. */
static LLVMValueRef *room(const writer *w, int64_t n) {
  KVA_ASSERT(n >= 0);
  return KVA_NEW_ARRAY(w->cg->arena, LLVMValueRef, n + 1);
}

static LLVMValueRef string(const writer *w, const char *s) {
  if (!s) return null(w);
  LLVMValueRef g = kva_map_get_str(w->strings, s);
  if (g) return g;
  g = constant(w, LLVMConstStringInContext2(w->cg->module->ctx, s, strlen(s), false), 1);
  LLVMSetUnnamedAddress(g, LLVMGlobalUnnamedAddr);
  kva_map_set_str(w->strings, s, g);
  return g;
}

static LLVMValueRef strings(const writer *w, int64_t n, const char *const *list) {
  LLVMValueRef *items = room(w, n);
  for (int64_t i = 0; i < n; i++) items[i] = string(w, list[i]);
  return table(w, n, items);
}

static LLVMValueRef numbers(const writer *w, int64_t n, const int32_t *list) {
  LLVMValueRef *items = room(w, n);
  for (int64_t i = 0; i < n; i++) items[i] = c32(w, list[i]);
  return table(w, n, items);
}

/* Tensors are large and often shared by programs, so their addresses identify them. A byte string is a single object to
 * LLVM, however long it is. */
static LLVMValueRef tensor(const writer *w, const void *data, int64_t bytes) {
  if (!data) return null(w);
  LLVMValueRef g = kva_map_get(w->data, &data, sizeof data);
  if (g) return g;
  g = constant(w, LLVMConstStringInContext2(w->cg->module->ctx, data, (size_t)bytes, true), DATA_ALIGNMENT);
  kva_map_set(w->data, &data, sizeof data, g);
  return g;
}

static LLVMValueRef words(const writer *w, const kva_formula *f) {
  size_t size = (size_t)f->n * sizeof *f->words;
  if (f->n == 0) return null(w);
  LLVMValueRef g = kva_map_get(w->formulas, f->words, size);
  if (g) return g;
  LLVMValueRef *items = room(w, f->n);
  for (int64_t i = 0; i < f->n; i++) {
    LLVMValueRef fields[] = {c64(w, f->words[i].op), c64(w, f->words[i].arg)};
    items[i] = RECORD(w, kva_formula_word, fields);
  }
  g = table(w, f->n, items);
  kva_map_set(w->formulas, f->words, size, g);
  return g;
}

static LLVMValueRef formula(const writer *w, const kva_formula *f) {
  LLVMValueRef fields[] = {words(w, f), c64(w, f->n)};
  return RECORD(w, kva_formula, fields);
}

static LLVMValueRef formulas(const writer *w, int64_t n, const kva_formula *list) {
  LLVMValueRef items[KVA_ABI_MAX_RANK];
  for (int64_t i = 0; i < n; i++) items[i] = formula(w, &list[i]);
  return LLVMConstArray2(LLVMTypeOf(items[0]), items, (uint64_t)n);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static LLVMValueRef buffer(const writer *w, const kva_buffer_desc *b) {
  bool data = b->kind == KVA_BUFFER_CONST && b->data;
  KVA_ASSERT(!data || (b->bytes.n == 1 && b->bytes.words[0].op == KVA_FORMULA_CONST));
  LLVMValueRef fields[] = {string(w, b->name),    c32(w, b->kind),
                           c32(w, b->dtype),      c32(w, b->rank),
                           c32(w, b->state),      c32(w, b->first_step),
                           c32(w, b->last_step),  formulas(w, KVA_ABI_MAX_RANK, b->dims),
                           formula(w, &b->bytes), data ? tensor(w, b->data, b->bytes.words[0].arg) : null(w)};
  return RECORD(w, kva_buffer_desc, fields);
}

/* *count: of the elements that the next list has. */
static LLVMValueRef member(const writer *w, char field, const void *at, int32_t *count) {
  switch (field) {
  case 'f':
  case 'o': return formula(w, at);
  case 'n': *count = *(const int32_t *)at; return c32(w, *count);
  case 'a': return numbers(w, *count, *(const int32_t *const *)at);
  case 'i': return c32(w, *(const int32_t *)at);
  default: KVA_ASSERT(field == 's'); return string(w, *(const char *const *)at);
  }
}

/* A step's descriptor, member by member. */
static LLVMValueRef descriptor(const writer *w, const kva_step_desc *s) {
  const char *fields = kva_step_fields(s);
  size_t n = strlen(fields);
  if (!n) return null(w);
  LLVMValueRef *members = room(w, (int64_t)n);
  int64_t at = 0;
  int32_t count = 0;
  for (size_t i = 0; i < n; i++) {
    at = kva_field_offset(fields[i], at);
    members[i] = member(w, fields[i], (const char *)s->desc + at, &count);
    at += kva_field_bytes(fields[i]);
  }
  size_t size = (size_t)(strspn(fields, "i") == n ? at : kva_field_offset('f', at));
  return constant(w, record(w, size, (unsigned)n, members), 16);
}

static LLVMValueRef step(const writer *w, const kva_step_desc *s) {
  LLVMValueRef fields[] = {c32(w, s->kind),
                           c32(w, s->kernel),
                           c32(w, s->call),
                           c32(w, s->n_args),
                           c32(w, s->n_results),
                           c32(w, s->wait),
                           numbers(w, s->n_args, s->args),
                           formula(w, &s->grid),
                           string(w, s->origin),
                           descriptor(w, s),
                           c32(w, s->n_symbols),
                           c32(w, 0),
                           numbers(w, s->n_symbols, s->symbols)};
  return RECORD(w, kva_step_desc, fields);
}

static LLVMValueRef condition(const writer *w, const kva_condition *c) {
  LLVMValueRef fields[] = {formula(w, &c->left), formula(w, &c->right), string(w, c->what)};
  return RECORD(w, kva_condition, fields);
}

static LLVMValueRef program(const writer *w, const kva_program *p) {
  LLVMValueRef *buffers = room(w, p->n_buffers), *steps = room(w, p->n_steps);
  for (int32_t i = 0; i < p->n_buffers; i++) buffers[i] = buffer(w, &p->buffers[i]);
  LLVMValueRef *conditions = room(w, p->n_conditions);
  for (int32_t i = 0; i < p->n_steps; i++) steps[i] = step(w, &p->steps[i]);
  for (int32_t i = 0; i < p->n_conditions; i++) conditions[i] = condition(w, &p->conditions[i]);
  LLVMValueRef fields[] = {string(w, p->name),
                           c32(w, p->n_symbols),
                           c32(w, p->n_buffers),
                           c32(w, p->n_steps),
                           c32(w, p->n_inputs),
                           c32(w, p->n_outputs),
                           c32(w, p->is_internal),
                           strings(w, p->n_symbols, p->symbols),
                           table(w, p->n_buffers, buffers),
                           table(w, p->n_steps, steps),
                           numbers(w, p->n_inputs, p->inputs),
                           numbers(w, p->n_outputs, p->outputs),
                           p->output_roles ? numbers(w, p->n_outputs, p->output_roles) : null(w),
                           table(w, p->n_conditions, conditions),
                           c32(w, p->n_conditions),
                           c32(w, 0)};
  return RECORD(w, kva_program, fields);
}

static LLVMValueRef tensor_map(const writer *w, const kva_tensor_map_desc *m) {
  LLVMValueRef box[KVA_ABI_MAP_RANK];
  for (int i = 0; i < KVA_ABI_MAP_RANK; i++) box[i] = c32(w, m->box[i]);
  LLVMValueRef fields[] = {c32(w, m->argument),
                           c32(w, m->dtype),
                           c32(w, m->rank),
                           c32(w, m->swizzle),
                           formulas(w, KVA_ABI_MAP_RANK, m->dims),
                           formulas(w, KVA_ABI_MAP_RANK, m->strides),
                           LLVMConstArray2(w->i32, box, KVA_ABI_MAP_RANK),
                           c32(w, 0)};
  return RECORD(w, kva_tensor_map_desc, fields);
}

static LLVMValueRef kernel(const writer *w, const kva_kernel_desc *k) {
  LLVMValueRef fn = w->is_gpu ? null(w) : LLVMGetNamedFunction(w->cg->module->ir, k->name);
  LLVMValueRef *maps = room(w, k->n_maps);
  for (int32_t i = 0; i < k->n_maps; i++) maps[i] = tensor_map(w, &k->maps[i]);
  KVA_ASSERT(fn);
  LLVMValueRef fields[] = {string(w, k->name),
                           fn,
                           c32(w, k->threads),
                           c32(w, k->shared_bytes),
                           c32(w, k->dynamic_bytes),
                           c32(w, k->n_symbols),
                           numbers(w, k->n_symbols, k->symbols),
                           table(w, k->n_maps, maps),
                           c32(w, k->n_maps),
                           c32(w, k->cooperating)};
  return RECORD(w, kva_kernel_desc, fields);
}

/* Of its initial values; parts are of types of whole bytes. */
static int64_t data_bytes(const kva_state_desc *s) {
  return kva_state_is_divided(s) ? kva_state_elements(s) * (kva_dtype_bits((kva_dtype)s->dtype) / 8) : s->bytes;
}

static LLVMValueRef state(const writer *w, const kva_state_desc *s) {
  LLVMValueRef dims[KVA_ABI_MAX_RANK], whole[KVA_ABI_MAX_RANK];
  for (int i = 0; i < KVA_ABI_MAX_RANK; i++) dims[i] = c64(w, s->dims[i]), whole[i] = c64(w, s->whole[i]);
  LLVMValueRef fields[] = {string(w, s->name),
                           c32(w, s->role),
                           c32(w, s->dtype),
                           c32(w, s->rank),
                           c32(w, s->init),
                           c32(w, s->of),
                           c32(w, s->parts),
                           LLVMConstReal(w->f64, s->init_a),
                           LLVMConstReal(w->f64, s->init_b),
                           LLVMConstArray2(w->i64, dims, KVA_ABI_MAX_RANK),
                           c64(w, s->bytes),
                           s->init == KVA_STATE_INIT_DATA ? tensor(w, s->data, data_bytes(s)) : null(w),
                           LLVMConstArray2(w->i64, whole, KVA_ABI_MAX_RANK),
                           c32(w, s->whole_rank),
                           c32(w, s->slices),
                           c32(w, s->split_axis),
                           c32(w, s->stages)};
  return RECORD(w, kva_state_desc, fields);
}

static LLVMValueRef code(const writer *w, const kva_code *c) {
  LLVMValueRef fields[] = {c32(w, c->format), c32(w, c->needs), string(w, c->arch), tensor(w, c->data, c->bytes),
                           c64(w, c->bytes)};
  return RECORD(w, kva_code, fields);
}

/* Includes its alternatives; common parts are written once. */
static LLVMValueRef artifact(const writer *w, const kva_artifact *a) {
  LLVMValueRef *states = room(w, a->n_states), *kernels = room(w, a->n_kernels), *programs = room(w, a->n_programs),
               *codes = room(w, a->n_codes);
  for (int32_t i = 0; i < a->n_codes; i++) codes[i] = code(w, &a->codes[i]);
  for (int32_t i = 0; i < a->n_states; i++) states[i] = state(w, &a->states[i]);
  for (int32_t i = 0; i < a->n_kernels; i++) kernels[i] = kernel(w, &a->kernels[i]);
  for (int32_t i = 0; i < a->n_programs; i++) programs[i] = program(w, &a->programs[i]);
  LLVMValueRef fields[] = {c64(w, (int64_t)a->magic),
                           c32(w, a->abi_version),
                           c32(w, a->n_states),
                           c32(w, a->n_kernels),
                           c32(w, a->n_programs),
                           c32(w, a->n_codes),
                           c32(w, 0),
                           string(w, a->model),
                           string(w, a->target),
                           table(w, a->n_codes, codes),
                           table(w, a->n_states, states),
                           table(w, a->n_kernels, kernels),
                           table(w, a->n_programs, programs),
                           c32(w, a->mesh_data),
                           c32(w, a->mesh_sequence),
                           c32(w, a->mesh_tensor),
                           c32(w, a->mesh_pipeline),
                           a->next ? artifact(w, a->next) : null(w)};
  return constant(w, RECORD(w, kva_artifact, fields), 16);
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

static LLVMValueRef extern_function(const writer *w, const char *name, LLVMTypeRef type) {
  LLVMValueRef f = LLVMGetNamedFunction(w->cg->module->ir, name);
  return f ? f : LLVMAddFunction(w->cg->module->ir, name, type);
}

/* An exported function that calls `callee` with its first n_before parameters, then the constants, then its other
 * parameters. */
typedef struct forward {
  const char *name, *callee;
  LLVMTypeRef result;
  unsigned n_parameters;
  LLVMTypeRef parameters[4];
  unsigned n_before, n_constants; /* n_before: parameters that go before the constants */
  LLVMValueRef constants[2];
} forward;

static void define_forward(const writer *w, const forward *f) {
  LLVMBuilderRef b = w->cg->module->builder;
  LLVMTypeRef own = LLVMFunctionType(f->result, (LLVMTypeRef *)f->parameters, f->n_parameters, false);
  LLVMValueRef fn = LLVMAddFunction(w->cg->module->ir, f->name, own), args[6];
  LLVMTypeRef types[6];
  unsigned n = 0;
  for (unsigned i = 0; i < f->n_before; i++) args[n++] = LLVMGetParam(fn, i);
  for (unsigned i = 0; i < f->n_constants; i++) args[n++] = f->constants[i];
  for (unsigned i = f->n_before; i < f->n_parameters; i++) args[n++] = LLVMGetParam(fn, i);
  for (unsigned i = 0; i < n; i++) types[i] = LLVMTypeOf(args[i]);
  LLVMTypeRef type = LLVMFunctionType(f->result, types, n, false);
  LLVMPositionBuilderAtEnd(b, LLVMAppendBasicBlockInContext(w->cg->module->ctx, fn, "entry"));
  LLVMValueRef v = LLVMBuildCall2(b, type, extern_function(w, f->callee, type), args, n, "");
  LLVMSetTailCall(v, true);
  if (f->result == LLVMVoidTypeInContext(w->cg->module->ctx))
    LLVMBuildRetVoid(b);
  else
    LLVMBuildRet(b, v);
}

static const char *named(const writer *w, const char *prefix, const char *suffix) {
  return kva_arena_printf(w->cg->arena, "%s_%s", prefix, suffix);
}

static void define_getter(const writer *w, const char *name, LLVMValueRef value) {
  LLVMValueRef fn = LLVMAddFunction(w->cg->module->ir, name, LLVMFunctionType(w->ptr, NULL, 0, false));
  LLVMPositionBuilderAtEnd(w->cg->module->builder, LLVMAppendBasicBlockInContext(w->cg->module->ctx, fn, "entry"));
  LLVMBuildRet(w->cg->module->builder, value);
}

static void define_functions(const writer *w, LLVMValueRef a, const kva_object_options *o) {
  LLVMTypeRef none = LLVMVoidTypeInContext(w->cg->module->ctx), ptr = w->ptr;
  define_getter(w, named(w, o->prefix, "artifact"), a);
  const forward fixed[] = {
      {named(w, o->prefix, "create"), "kva_context_create", w->i32, 4, {ptr, ptr, ptr, w->i64}, 0, 1, {a}},
      {named(w, o->prefix, "destroy"), "kva_context_destroy", none, 1, {ptr}, 0, 0, {NULL}},
      {named(w, o->prefix, "error"), "kva_context_error", ptr, 1, {ptr}, 0, 0, {NULL}}};
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) define_forward(w, &fixed[i]);
  for (uint32_t i = 0; i < o->n_functions; i++) {
    const kva_object_function *f = &o->functions[i];
    LLVMValueRef number = c32(w, f->program);
    const forward run = {f->name, "kva_context_run", w->i32, 4, {ptr, ptr, ptr, ptr}, 1, 1, {number}};
    const forward arena = {named(w, f->name, "arena"), "kva_context_arena_bytes", w->i64, 1, {ptr}, 0, 2, {a, number}};
    const forward dims = {named(w, f->name, "dims"), "kva_context_dims", none, 2, {ptr, ptr}, 1, 1, {number}};
    define_forward(w, &run);
    define_forward(w, &arena);
    if (f->binds) define_forward(w, &dims);
  }
}

static LLVMValueRef info_table(const writer *w, const char *const *info) {
  int64_t n = 0;
  while (info && info[n]) n++;
  LLVMValueRef *items = room(w, n + 1);
  for (int64_t i = 0; i < n; i++) items[i] = string(w, info[i]);
  items[n] = null(w);
  return table(w, n + 1, items);
}

static void define_main(const writer *w, LLVMValueRef a, const kva_object_options *o) {
  if (!o->entry) return;
  const forward f = {"main", o->entry, w->i32, 2, {w->i32, w->ptr}, 2, 2, {a, info_table(w, o->info)}};
  define_forward(w, &f);
}

/* Only the artefact refers to kernels by name. */
static void hide_kernels(kva_codegen *cg) {
  for (uint32_t i = 0; i < cg->kernels.len; i++)
    LLVMSetLinkage(LLVMGetNamedFunction(cg->module->ir, cg->kernels.data[i].name), LLVMInternalLinkage);
}

kva_status kva_codegen_object(kva_codegen *cg, const kva_artifact *a, const kva_object_options *options,
                              const char **out_data, size_t *out_size) {
  KVA_ASSERT(!cg->in_process);
  KVA_TRY(kva_cg_optimize(cg->module));
  writer w = {.cg = cg,
              .is_gpu = a->codes[0].format != KVA_CODE_FUNCTIONS,
              .ptr = LLVMPointerTypeInContext(cg->module->ctx, 0),
              .i32 = LLVMInt32TypeInContext(cg->module->ctx),
              .i64 = LLVMInt64TypeInContext(cg->module->ctx),
              .f64 = LLVMDoubleTypeInContext(cg->module->ctx),
              .strings = kva_map_create(cg->arena),
              .formulas = kva_map_create(cg->arena),
              .data = kva_map_create(cg->arena)};
  LLVMValueRef tables = artifact(&w, a);
  define_functions(&w, tables, options);
  define_main(&w, tables, options);
  hide_kernels(cg);
  KVA_TRY(kva_cg_machine_code(cg->module, LLVMObjectFile, &cg->object));
  *out_data = LLVMGetBufferStart(cg->object);
  *out_size = LLVMGetBufferSize(cg->object);
  return KVA_OK;
}
