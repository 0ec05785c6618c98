/* kvasir show: prints a model at any stage of the compiler. */
#include "tools/on_cluster.h"
#include "tools/driver/summary.h"
#include "tools/tune.h"

#include <stdlib.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_show = {
    "show", "MODEL [options]", "print a model at a stage of the compiler",
    "Stages, in order:\n"
    "  source   as loaded\n"
    "  graph    cleaned up and raised (and differentiated with --train)\n"
    "  fused    grouped into kernels\n"
    "  plan     parameters, FLOPs, memory by category, and which hand-written kernel a step takes,\n"
    "           and why; allocates and compiles nothing\n"
    "  kernels  kernel IR of every step, scheduled\n"
    "  llvm     LLVM IR\n"
    "  asm      assembly\n"
    "  ptx      code for an NVIDIA GPU, every distinct kernel once\n\n"
    "With --cluster: a training step on paper, in bf16, on nodes of GPUs: memory by category, messages, bytes and time "
    "of\n"
    "every exchange, tokens a second, MFU. Without --mesh the best mesh is searched. --memory is what a process may "
    "take,\n"
    "else 95 % of the GPU's; --pin B=N fixes the rows of a micro-batch, else they are as many as fit. docs/scale.md "
    "has\n"
    "the formulas. There is no pipeline parallelism, and so no bubble.\n\n"
    "Examples:\n"
    "  kvasir show models/lm.kv -D preset=19B --train --stage=plan\n"
    "  kvasir show models/lm.kv -D preset=19B --cluster h100x8x16 --batch 256\n"
    "  kvasir show model.onnx --stage=graph --format=dot | dot -Tsvg > model.svg\n"
    "  kvasir show model.onnx --stage=ptx --arch=sm_90a > model.ptx",
    run};

typedef struct show_options {
  const char *stage, *format, *cpu, *arch, *mesh_text;
  kva_mesh mesh; /* value of --mesh */
  bool train;
  const char *precision;
  kva_dtype compute; /* value of --precision */
  int64_t memory;
  kva_strings defines, pins;
  kva_tune_choice tune;
  kva_pass_choice passes;
  kva_cluster_choice cluster;
} show_options;

static void print_graph(kva_module *m, const char *format) {
  kva_text text = {0};
  if (!strcmp(format, "dot"))
    kva_module_print_dot(m, &text);
  else
    kva_module_print(m, &text);
  fputs(text.data ? text.data : "", stdout);
  kva_text_free(&text);
}

static kva_status print_code(kva_codegen *cg, const char *kind) {
  char *data;
  size_t size;
  KVA_TRY(kva_codegen_emit(cg, kind, &data, &size));
  fwrite(data, 1, size, stdout);
  free(data);
  return KVA_OK;
}

static kva_status show_kernel_text(kva_codegen *cg, kva_arena *arena, kva_module *m) {
  kva_text text = {0};
  kva_status status = kva_print_kernels(cg, arena, m, &text);
  fputs(text.data ? text.data : "", stdout);
  kva_text_free(&text);
  return status;
}

static kva_target_options target_of(const show_options *o) {
  bool ptx = !strcmp(o->stage, "ptx");
  return (kva_target_options){.cpu = o->cpu, .arch = ptx && !o->arch ? "sm_80" : o->arch, .opt_level = 2};
}

/* Prints plans, kernels and PTX. */
static kva_status show_planned(kva_module *m, kva_arena *arena, show_options *o, kva_diag *diag) {
  bool ptx = !strcmp(o->stage, "ptx"), plan = !strcmp(o->stage, "plan");
  kva_target_options target = target_of(o);
  kva_codegen *cg;
  target.control = &o->passes.control;
  KVA_TRY(kva_codegen_create(&target, diag, &cg));
  bool json = !strcmp(o->format, "json");
  kva_status status = plan  ? (json ? kva_print_plans_json : kva_print_plans)(cg, m, stdout)
                      : ptx ? kva_add_kernels(cg, arena, m)
                            : show_kernel_text(cg, arena, m);
  if (ptx && status == KVA_OK) status = print_code(cg, "ptx");
  kva_codegen_destroy(cg);
  return status;
}

/* Prints a CPU's code: what kva_compile makes of a model, as one module. */
static kva_status show_code(kva_module *m, kva_arena *arena, show_options *o, kva_diag *diag) {
  const kva_compile_options options = {
      .train = o->train,
      .target = {.cpu = o->cpu, .opt_level = 2, .control = &o->passes.control},
      .passes = {.control = &o->passes.control, .compute = o->compute, .memory = o->memory, .mesh = o->mesh}};
  kva_memory_plan **plans;
  uint32_t n_plans;
  kva_artifact *tables;
  kva_codegen *cg;
  KVA_TRY(kva_compile_graph(m, &options));
  KVA_TRY(kva_plan_functions(m, &options, arena, &n_plans, &plans));
  KVA_TRY(kva_codegen_create(&options.target, diag, &cg));
  kva_status status = kva_codegen_tables(cg, arena, m, n_plans, plans, &tables);
  if (status == KVA_OK) status = print_code(cg, o->stage);
  kva_codegen_destroy(cg);
  return status;
}

static bool is_unplanned(const char *stage) {
  return kva_word_index("source|graph|fused", stage) >= 0;
}

/* Runs the passes that the stage needs. */
static kva_status run_passes(kva_module *m, const show_options *o, const kva_pass_options *passes) {
  bool changed = false;
  if (!strcmp(o->stage, "source")) return KVA_OK;
  KVA_TRY(kva_optimize(m, passes));
  if (o->train) KVA_TRY(kva_make_training(m, passes));
  if (strcmp(o->stage, "graph") != 0) KVA_TRY(kva_prepare(m, passes));
  return is_unplanned(o->stage) ? KVA_OK : kva_run_pass(m, KVA_PASS_plan, passes, &changed);
}

static kva_status show_stage(kva_module *m, kva_arena *arena, show_options *o, kva_diag *diag) {
  if (!strcmp(o->stage, "llvm") || !strcmp(o->stage, "asm")) return show_code(m, arena, o, diag);
  const kva_target_options options = target_of(o);
  kva_target target;
  KVA_TRY(kva_codegen_describe(&options, diag, &target));
  kva_pass_options passes = {
      .control = &o->passes.control, .target = &target, .compute = o->compute, .memory = o->memory, .mesh = o->mesh};
  KVA_TRY(run_passes(m, o, &passes));
  if (!is_unplanned(o->stage)) return show_planned(m, arena, o, diag);
  print_graph(m, o->format);
  return KVA_OK;
}

static kva_status show(kva_module *m, show_options *o, kva_diag *diag) {
  kva_arena *arena = kva_arena_create();
  kva_status status = show_stage(m, arena, o, diag);
  kva_arena_destroy(arena);
  return status;
}

static int usage_error(const char *what) {
  fprintf(stderr, "kvasir show: %s\nTry: kvasir show --help\n", what);
  return EXIT_USAGE;
}

/* -1, or the exit code of what does not go together. */
static int check_options(const show_options *o) {
  const kva_cluster_choice *c = &o->cluster;
  bool plan = o->stage && !strcmp(o->stage, "plan");
  if (!c->name && (c->batch || c->efficiency > 0)) return usage_error("--batch and --efficiency are for --cluster");
  if (c->name && o->stage && !plan) return usage_error("--cluster is a plan: --stage=plan");
  if (c->name && (o->arch || o->cpu)) return usage_error("--cluster names the GPU; leave --arch and --cpu away");
  if (c->name && !strcmp(o->format, "dot")) return usage_error("--cluster has the formats text and json");
  if (c->name && o->precision && !strcmp(o->precision, "f32"))
    return usage_error("--cluster knows the peak of 16-bit products: --precision bf16 or f16");
  if (!c->name && !strcmp(o->format, "json") && !plan) return usage_error("--format=json is for --stage=plan");
  return -1;
}

static int show_cluster(show_options *o, const char *path, kva_diag *diag) {
  const kva_cluster_model model = {.path = path,
                                   .defines = &o->defines,
                                   .pins = &o->pins,
                                   .mesh = o->mesh_text,
                                   .compute = o->compute ? o->compute : KVA_BF16,
                                   .memory = o->memory,
                                   .json = !strcmp(o->format, "json"),
                                   .control = &o->passes.control};
  int code = kva_cli_show_cluster(&o->cluster, &model, diag);
  kva_cli_print_passes(&o->passes);
  return code;
}

static int show_model(show_options *o, const char *path, kva_diag *diag) {
  kva_module *m = NULL;
  const kva_tune_load how = {&o->defines, &o->pins, .free_batch = o->tune.loss, .train = true,
                             .control = &o->passes.control};
  int code = o->train ? kva_cli_load_tuned(path, &how, &o->tune, diag, &m)
                      : kva_cli_load(path, &o->defines, &o->pins, diag, &m);
  if (code < 0) {
    kva_status status = show(m, o, diag);
    kva_cli_print_passes(&o->passes);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  }
  kva_module_destroy(m);
  return code;
}

static int run(int argc, char **argv) {
  show_options o = {.format = "text", .tune = KVA_TUNE_NOTHING};
  const kva_option options[] = {
      {"--stage", NULL, "source|graph|fused|plan|kernels|llvm|asm|ptx", KVA_OPTION_WORD, &o.stage,
       "what to print (graph)"},
      {"--format", NULL, "text|dot|json", KVA_OPTION_WORD, &o.format,
       "of graphs: text, dot (text); of plans: text, json"},
      KVA_TRAIN_OPTION(&o.tune, "with gradients and optimiser updates; of all parameters, or of what matches"),
      KVA_TUNE_OPTIONS(&o.tune),
      {"--precision", NULL, KVA_PRECISIONS, KVA_OPTION_WORD, &o.precision, "of products from stage fused on (f32)"},
      KVA_MEMORY_OPTION(&o.memory),
      KVA_MESH_OPTION(&o.mesh_text),
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      {"--cpu", NULL, "NAME", KVA_OPTION_STRING, &o.cpu, "LLVM name of the CPU to generate for (this machine's)"},
      {"--arch", NULL, "NAME", KVA_OPTION_STRING, &o.arch,
       "the GPU of --stage=ptx (sm_80), kernels or plan: sm_80 to sm_90a"},
      KVA_CLUSTER_OPTIONS(&o.cluster),
      KVA_PASS_OPTIONS(&o.passes),
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_show, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (n == 0) return usage_error("a model is missing");
  if ((code = check_options(&o)) >= 0) return code;
  if ((code = kva_cli_passes(&kva_verb_show, &o.passes)) >= 0) return code;
  if ((code = kva_cli_take_train(&kva_verb_show, &o.tune, &o.train)) >= 0) return code;
  if ((code = kva_cli_check_tune(&o.tune)) >= 0) return code;
  if ((code = kva_cli_mesh(o.mesh_text, &o.mesh)) >= 0) return code;
  if (!o.stage) o.stage = "graph";
  if (!(o.cluster.efficiency > 0)) o.cluster.efficiency = KVA_CLUSTER_EFFICIENCY;
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_precision_named(o.precision, diag, &o.compute);
  if (status != KVA_OK)
    code = kva_cli_fail(status, diag);
  else
    code = (o.cluster.name ? show_cluster : show_model)(&o, path, diag);
  kva_diag_destroy(diag);
  return code;
}
