/* Ahead-of-time builds: one module, its plans, and every requested file made from them. Each target gets its own code
 * from the same plans. */
#include "tools/driver/build.h"
#include "ops/ids.h"
#include "tools/driver/ranges.h"
#include "tools/driver/summary.h"

#include <stdlib.h>

typedef struct build {
  kva_module *m;
  const kva_build_options *o;
  kva_diag *diag;
  kva_arena *arena;
  uint32_t n_plans;
  kva_memory_plan **plans;
  kva_session *values; /* of the parameters, for inference; NULL until needed */
  uint32_t n_inputs;   /* of the loss */
  const char **inputs;
  const kva_data_range *ranges;
} build;

/* ---- artefacts --------------------------------------------------------------------------------------------------- */

static kva_status freeze(build *b, kva_artifact *a) {
  if (a->n_states == 0) return KVA_OK;
  if (!b->values) KVA_TRY(kva_initial_values(a, b->o->seed, b->arena, b->diag, &b->values));
  kva_freeze_states(b->m, a, b->values, b->arena);
  return KVA_OK;
}

/* A code generator under the control of the build's passes. */
static kva_status create_codegen(const build *b, const kva_target_options *target, kva_codegen **out_cg) {
  kva_target_options options = *target;
  options.control = b->o->control;
  return kva_codegen_create(&options, b->diag, out_cg);
}

/* *out_cg receives the code generator; a GPU's code needs it no longer. */
static kva_status make_tables(build *b, const kva_target_options *target, kva_codegen **out_cg, kva_artifact **out) {
  KVA_TRY(create_codegen(b, target, out_cg));
  kva_status status = kva_codegen_tables(*out_cg, b->arena, b->m, b->n_plans, b->plans, out);
  if (status == KVA_OK && !b->o->train) status = freeze(b, *out);
  if (status == KVA_OK) return KVA_OK;
  kva_codegen_destroy(*out_cg);
  *out_cg = NULL;
  return status;
}

static const char *number(const build *b, double v) {
  if (v == (double)(int)v) return kva_arena_printf(b->arena, "%d", (int)v);
  kva_text text = {0};
  kva_text_add_double(&text, v);
  const char *s = kva_arena_strdup(b->arena, text.data);
  kva_text_free(&text);
  return s;
}

typedef KVA_VEC(const char *) info_list;

static void add_info(const build *b, info_list *list, const char *key, const char *value) {
  if (!value) return;
  KVA_PUSH(b->arena, list, key);
  KVA_PUSH(b->arena, list, value);
}

static int64_t trained_elements(const kva_module *m) {
  int64_t sum = 0;
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *s = m->states.data[i];
    int64_t n = 1, extent;
    if (s->kind != KVA_STATE_PARAM || s->frozen) continue;
    for (uint32_t d = 0; d < s->type->rank; d++) n *= kva_expr_is_const(s->type->dims[d], &extent) ? extent : 1;
    sum += n;
  }
  return sum;
}

/* Notes what values the data inputs may have, before passes change how the loss uses them. */
static void note_ranges(build *b) {
  const kva_function *loss = kva_module_find_function(b->m, "loss");
  if (!loss) return;
  b->n_inputs = loss->graph->inputs.len;
  b->inputs = KVA_NEW_ARRAY(b->arena, const char *, b->n_inputs + 1);
  for (uint32_t i = 0; i < b->n_inputs; i++) b->inputs[i] = loss->graph->inputs.data[i]->name;
  b->ranges = kva_input_ranges(b->m, loss, b->arena);
}

static void add_ranges(const build *b, info_list *list) {
  for (uint32_t i = 0; i < b->n_inputs; i++) {
    const kva_data_range *r = &b->ranges[i];
    if (!r->known || !b->inputs[i]) continue;
    const char *ignored = r->has_ignored ? kva_arena_printf(b->arena, " %lld", (long long)r->ignored) : "";
    add_info(b, list, kva_arena_printf(b->arena, "train.range.%s", b->inputs[i]),
             kva_arena_printf(b->arena, "%lld %lld%s", (long long)r->low, (long long)r->high, ignored));
  }
}

/* Adds the facts of the train block, see runtime/exe/exe.h. */
static void add_training(const build *b, info_list *list) {
  const kva_train_spec *t = b->m->train;
  int64_t vocab = 0;
  const kva_type *logits = kva_graph_output(b->m->functions.data[0]->graph, 0)->type;
  if (logits->rank && kva_expr_is_const(logits->dims[logits->rank - 1], &vocab))
    add_info(b, list, "train.vocab", kva_arena_printf(b->arena, "%lld", (long long)vocab));
  add_info(b, list, "train.trained", kva_arena_printf(b->arena, "%lld", (long long)trained_elements(b->m)));
  add_info(b, list, "train.precision", b->o->compute == KVA_BF16 ? "bf16" : b->o->compute == KVA_F16 ? "f16" : "f32");
  add_info(b, list, "train.optimizer", t->optimizer);
  add_info(b, list, "train.lr", number(b, t->lr));
  add_info(b, list, "train.final_ratio", number(b, t->final_lr_ratio));
  add_info(b, list, "train.schedule", t->schedule);
  add_info(b, list, "train.warmup", kva_arena_printf(b->arena, "%lld", (long long)t->warmup_steps));
  add_info(b, list, "train.total", kva_arena_printf(b->arena, "%lld", (long long)t->total_steps));
  add_info(b, list, "train.steps", kva_arena_printf(b->arena, "%lld", (long long)t->steps));
  add_info(b, list, "train.batch", kva_arena_printf(b->arena, "%lld", (long long)t->batch));
  add_info(b, list, "train.data", t->data);
  for (uint32_t i = 0; t->data_args && i < kva_map_len(t->data_args); i++)
    add_info(b, list, kva_arena_printf(b->arena, "train.data.%s", (const char *)kva_map_key_at(t->data_args, i, NULL)),
             number(b, *(const double *)kva_map_value_at(t->data_args, i)));
  add_ranges(b, list);
}

static const char *const *info_of(const build *b) {
  info_list list = {0};
  add_info(b, &list, "prefix", b->o->prefix);
  add_info(b, &list, "description", b->o->description);
  add_info(b, &list, "weights", b->o->weights ? kva_file_name(b->o->weights) : NULL);
  if (b->o->texts) {
    add_info(b, &list, "generate.tokenizer", b->o->texts->tokenizer);
    add_info(b, &list, "generate.chat", b->o->texts->chat);
    if (b->o->texts->context < INT64_MAX)
      add_info(b, &list, "generate.context", kva_arena_printf(b->arena, "%lld", (long long)b->o->texts->context));
  }
  if (b->o->train) add_training(b, &list);
  KVA_PUSH(b->arena, &list, NULL);
  return list.data;
}

static kva_object_options object_options(const build *b, const kva_artifact *a) {
  bool is_exe = b->o->form == KVA_BUILD_EXE;
  const char *entry = b->o->texts ? "kva_generate_main" : b->o->train ? "kva_train_main" : "kva_infer_main";
  return (kva_object_options){.prefix = b->o->prefix,
                              .n_functions = (uint32_t)kva_artifact_programs(a),
                              .functions = kva_c_functions(b->arena, a, b->o->prefix),
                              .entry = is_exe ? entry : NULL,
                              .info = is_exe ? info_of(b) : NULL};
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* OUT with its extension replaced. */
static const char *beside(const build *b, const char *extension) {
  const char *out = b->o->output, *dot = strrchr(kva_file_name(out), '.');
  int stem = dot && dot != kva_file_name(out) ? (int)(dot - out) : (int)strlen(out);
  return kva_arena_printf(b->arena, "%.*s%s", stem, out, extension);
}

/* One text for all targets. */
static bool is_common(const char *kind) {
  return !strcmp(kind, "ir") || !strcmp(kind, "plan") || !strcmp(kind, "header");
}

static const char *extension_of(const build *b, const char *kind) {
  if (!strcmp(kind, "llvm")) return ".ll";
  if (!strcmp(kind, "asm")) return ".s";
  if (!strcmp(kind, "header")) return ".h";
  return kva_arena_printf(b->arena, ".%s", kind);
}

/* A text is written to OUT itself if it is the only output. */
static const char *text_path(const build *b, const kva_target_options *target, const char *kind) {
  const kva_build_options *o = b->o;
  const char *extension = extension_of(b, kind);
  if (o->form == KVA_BUILD_NOTHING && o->n_emits == 1 && o->n_targets <= 1) return o->output;
  if (o->n_targets <= 1 || is_common(kind)) return beside(b, extension);
  const char *name = target->arch     ? target->arch
                     : target->cpu    ? target->cpu
                     : target->triple ? target->triple
                                      : "native";
  return beside(b, kva_arena_printf(b->arena, ".%s%s", name, extension));
}

static kva_status check_text(const build *b, const kva_target_options *target, const char *kind) {
  const kva_build_options *o = b->o;
  const char *path = text_path(b, target, kind);
  if (o->form != KVA_BUILD_NOTHING && !strcmp(path, o->output))
    return kva_error(b->diag, NULL, "-o %s: the text of --emit=%s would be written there, too; give another name", path,
                     kind);
  if (o->weights && !strcmp(path, o->weights))
    return kva_error(b->diag, NULL, "--weights %s: another file of the build would be written there, too", path);
  return KVA_OK;
}

/* Object or library, header, weights and texts are files of their own. */
static kva_status check_names(const build *b) {
  const kva_build_options *o = b->o;
  const char *header = o->form == KVA_BUILD_NOTHING || o->form == KVA_BUILD_EXE ? NULL : beside(b, ".h");
  if (header && !strcmp(header, o->output))
    return kva_error(b->diag, NULL, "-o %s: the header would be written there, too; give another name", o->output);
  if (o->weights && (!strcmp(o->weights, o->output) || (header && !strcmp(o->weights, header))))
    return kva_error(b->diag, NULL, "--weights %s: another file of the build would be written there, too", o->weights);
  for (uint32_t i = 0; i < o->n_emits; i++)
    for (uint32_t k = 0; k < o->n_targets; k++) KVA_TRY(check_text(b, &o->targets[k], o->emits[i]));
  return KVA_OK;
}

static kva_status write_text(const build *b, const kva_target_options *target, const char *kind, const kva_text *text) {
  return kva_file_write(text_path(b, target, kind), text->data ? text->data : "", text->len, b->diag);
}

static kva_status write_header(const build *b, const kva_artifact *a, const char *path) {
  kva_text text = {0};
  kva_c_header(a, b->o->prefix, b->o->description, &text);
  kva_status status = kva_file_write(path, text.data, text.len, b->diag);
  kva_text_free(&text);
  return status;
}

/* ---- forms ------------------------------------------------------------------------------------------------------- */

static kva_status write_archive(const build *b, const kva_object_options *o, const char *object, size_t size) {
  static const char *const fixed[] = {"artifact", "create", "destroy", "error"};
  const char **symbols = KVA_NEW_ARRAY(b->arena, const char *, 4 + 2 * o->n_functions);
  uint32_t n = 0;
  for (int i = 0; i < 4; i++) symbols[n++] = kva_arena_printf(b->arena, "%s_%s", o->prefix, fixed[i]);
  for (uint32_t i = 0; i < o->n_functions; i++) {
    symbols[n++] = o->functions[i].name;
    symbols[n++] = kva_arena_printf(b->arena, "%s_arena", o->functions[i].name);
  }
  kva_text text = {0};
  kva_archive("model.o", object, size, n, symbols, &text);
  kva_status status = kva_file_write(b->o->output, text.data, text.len, b->diag);
  kva_text_free(&text);
  return status;
}

static kva_status write_form(const build *b, const kva_object_options *o, const char *object, size_t size) {
  kva_link_options link = b->o->link;
  switch (b->o->form) {
  case KVA_BUILD_OBJECT: return kva_file_write(b->o->output, object, size, b->diag);
  case KVA_BUILD_STATIC: return write_archive(b, o, object, size);
  case KVA_BUILD_SHARED:
  case KVA_BUILD_EXE:
    link.executable = b->o->form == KVA_BUILD_EXE;
    link.generate = b->o->texts != NULL;
    link.prefix = b->o->prefix;
    link.triple = b->o->targets[0].triple;
    return kva_link(object, size, b->o->output, &link, b->diag);
  default: return KVA_OK;
  }
}

/* The tables of a GPU's code are data: they are written to an object of this machine, for any CPU of its kind. */
static kva_status host_codegen(const build *b, kva_codegen **cg) {
#if defined __aarch64__
  const kva_target_options any = {.triple = "aarch64-linux-gnu", .opt_level = 2};
#else
  const kva_target_options any = {.triple = "x86_64-linux-gnu", .opt_level = 2};
#endif
  return kva_codegen_create(&any, b->diag, cg);
}

/* Tables for every target, each an alternative of the previous one. cgs own parts of them. */
static kva_status make_alternatives(build *b, kva_codegen **cgs, kva_artifact **out) {
  for (uint32_t i = b->o->n_targets; i-- > 0;) {
    kva_artifact *a;
    KVA_TRY(make_tables(b, &b->o->targets[i], &cgs[i], &a));
    if (b->o->weights) KVA_TRY(kva_move_weights(a, b->o->weights, b->arena, b->diag));
    if (b->o->cubin) KVA_TRY(kva_add_machine_code(a, b->arena, b->diag));
    if (i + 1 < b->o->n_targets) a->next = *out;
    *out = a;
  }
  return KVA_OK;
}

static kva_status build_form(build *b) {
  if (b->o->form == KVA_BUILD_NOTHING) return KVA_OK;
  uint32_t n = b->o->n_targets;
  kva_codegen **cgs = KVA_NEW_ARRAY(b->arena, kva_codegen *, n + 1), **host = &cgs[0];
  kva_artifact *a = NULL;
  kva_object_options o;
  const char *object = NULL;
  size_t size = 0;
  kva_status status = make_alternatives(b, cgs, &a);
  if (status == KVA_OK && kva_artifact_arch(a)) status = host_codegen(b, host = &cgs[n]);
  if (status == KVA_OK) {
    o = object_options(b, a);
    status = kva_codegen_object(*host, a, &o, &object, &size);
  }
  if (status == KVA_OK) status = write_form(b, &o, object, size);
  if (status == KVA_OK && b->o->form != KVA_BUILD_EXE) status = write_header(b, a, beside(b, ".h"));
  for (uint32_t i = 0; i <= n; i++) kva_codegen_destroy(cgs[i]);
  return status;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static kva_status emit_ir(const build *b) {
  kva_text text = {0};
  kva_module_print(b->m, &text);
  kva_status status = write_text(b, NULL, "ir", &text);
  kva_text_free(&text);
  return status;
}

static kva_status print_plans(const build *b, const kva_target_options *target, FILE *out) {
  kva_codegen *cg;
  KVA_TRY(create_codegen(b, target, &cg));
  kva_status status = KVA_OK;
  for (uint32_t i = 0; status == KVA_OK && i < b->n_plans; i++) {
    status = kva_codegen_settle(b->arena, b->plans[i], kva_codegen_target(cg));
    if (status == KVA_OK) status = kva_print_plan(b->m, b->plans[i], out);
  }
  kva_codegen_destroy(cg);
  return status;
}

static kva_status emit_plan(const build *b, const kva_target_options *target) {
  char *data = NULL;
  size_t size = 0;
  FILE *memory = open_memstream(&data, &size);
  if (!memory) return kva_fail(b->diag, KVA_NO_MEMORY, NULL, "no memory for the plan");
  kva_status status = print_plans(b, target, memory);
  fclose(memory);
  if (status == KVA_OK) status = kva_file_write(text_path(b, NULL, "plan"), data, size, b->diag);
  free(data);
  return status;
}

static kva_status emit_kernels(const build *b, const kva_target_options *target) {
  kva_codegen *cg;
  kva_text text = {0};
  KVA_TRY(create_codegen(b, target, &cg));
  kva_status status = kva_print_kernels(cg, b->arena, b->m, &text);
  if (status == KVA_OK) status = write_text(b, target, "kernel", &text);
  kva_text_free(&text);
  kva_codegen_destroy(cg);
  return status;
}

static kva_status emit_header(build *b, const kva_target_options *target) {
  kva_codegen *cg;
  kva_artifact *a;
  KVA_TRY(make_tables(b, target, &cg, &a));
  kva_status status = write_header(b, a, text_path(b, NULL, "header"));
  kva_codegen_destroy(cg);
  return status;
}

/* The tables of a GPU contain its PTX. (LLVM changes a module while emitting it, so a second text would differ.) */
static kva_status make_code(build *b, const kva_target_options *target, const char *kind, kva_file_part *out) {
  kva_codegen *cg;
  kva_artifact *a;
  char *data = NULL;
  KVA_TRY(make_tables(b, target, &cg, &a));
  kva_status status = KVA_OK;
  if (a->codes[0].format == KVA_CODE_PTX && !strcmp(kind, "ptx")) {
    *out = (kva_file_part){a->codes[0].data, (size_t)a->codes[0].bytes};
  } else {
    status = kva_codegen_emit(cg, kind, &data, &out->size);
    if (status == KVA_OK) out->data = kva_arena_strndup(b->arena, data, out->size);
  }
  free(data);
  kva_codegen_destroy(cg);
  return status;
}

static kva_status emit_code(build *b, const kva_target_options *target, const char *kind) {
  kva_file_part code;
  KVA_TRY(make_code(b, target, kind, &code));
  return kva_file_write(text_path(b, target, kind), code.data, code.size, b->diag);
}

static kva_status emit_cubin(build *b, const kva_target_options *target) {
  if (!target->arch) return kva_error(b->diag, NULL, "--emit=cubin needs a GPU: --target sm_80 to sm_90a");
  kva_file_part ptx, cubin;
  KVA_TRY(make_code(b, target, "ptx", &ptx));
  KVA_TRY(kva_assemble_ptx(target->arch, ptx, b->arena, b->diag, &cubin));
  return kva_file_write(text_path(b, target, "cubin"), cubin.data, cubin.size, b->diag);
}

static kva_status emit_for_target(build *b, const kva_target_options *target, const char *kind) {
  if (!strcmp(kind, "kernel")) return emit_kernels(b, target);
  if (!strcmp(kind, "cubin")) return emit_cubin(b, target);
  return emit_code(b, target, kind);
}

static kva_status emit(build *b, const char *kind) {
  if (!strcmp(kind, "ir")) return emit_ir(b);
  if (!strcmp(kind, "plan")) return emit_plan(b, &b->o->targets[0]);
  if (!strcmp(kind, "header")) return emit_header(b, &b->o->targets[0]);
  for (uint32_t i = 0; i < b->o->n_targets; i++) KVA_TRY(emit_for_target(b, &b->o->targets[i], kind));
  return KVA_OK;
}

/* One graph serves all targets: it is the first CPU's, or the first GPU's, if there are no others. */
static kva_target_options target_of_graph(const kva_build_options *o) {
  for (uint32_t i = 0; i < o->n_targets; i++)
    if (!o->targets[i].arch) return o->targets[i];
  return o->n_targets ? o->targets[0] : (kva_target_options){0};
}

/* The first function of a library that g or its sub-graphs call; NULL: none. */
static const kva_node *external_in(const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next) {
    if (kva_is(n, KVA_OP_external)) return n;
    for (uint32_t i = 0; i < n->n_graphs; i++) {
      const kva_node *inside = external_in(n->graphs[i]);
      if (inside) return inside;
    }
  }
  return NULL;
}

static kva_status check_deployable(const kva_module *m, kva_diag *diag) {
  for (uint32_t i = 0; i < m->functions.len; i++) {
    const kva_node *n = external_in(m->functions.data[i]->graph);
    if (n)
      return kva_fail(diag, KVA_UNSUPPORTED, &n->loc,
                      "function '%s' (strings) is in libkvasir and its tool, but in no runtime that is deployed",
                      ((const kva_external_attrs *)n->attrs)->name);
  }
  return KVA_OK;
}

kva_status kva_build_model(kva_module *m, const kva_build_options *options, kva_diag *diag) {
  build b = {.m = m, .o = options, .diag = diag, .arena = kva_arena_create()};
  kva_compile_options compile = {.train = options->train,
                                 .decode = options->texts != NULL,
                                 .decode_only = options->texts != NULL,
                                 .target = target_of_graph(options),
                                 .passes = {.control = options->control,
                                            .train = KVA_TRAIN_BOTH,
                                            .adjustable = true,
                                            .compute = options->compute,
                                            .sequences = options->texts ? options->texts->together : 0,
                                            .caches = options->caches,
                                            .memory = options->memory,
                                            .mesh = options->mesh}};
  kva_status status = check_names(&b);
  if (status == KVA_OK) status = check_deployable(m, diag);
  if (options->train) note_ranges(&b);
  if (status == KVA_OK) status = kva_compile_graph(m, &compile);
  if (status == KVA_OK) status = kva_plan_functions(m, &compile, b.arena, &b.n_plans, &b.plans);
  for (uint32_t i = 0; status == KVA_OK && i < options->n_emits; i++) status = emit(&b, options->emits[i]);
  if (status == KVA_OK) status = build_form(&b);
  kva_session_destroy(b.values);
  kva_arena_destroy(b.arena);
  return status;
}
