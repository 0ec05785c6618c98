/* kvasir doctor: shows what this machine offers to Kvasir. */
#include "runtime/base/external.h"
#include "runtime/comm_mpi.h"
#include "runtime/cuda/query.h"
#include "tools/cli.h"
#include "tools/driver/build.h"
#include "tools/eval/items.h"
#include "tools/serve/http/server.h"

#include <stdlib.h>
#include <unistd.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_doctor = {"doctor", "[options]", "show what this machine offers and what follows from it",
                                  "Exit code 0 when models can be compiled and run on the CPU of this machine, else 3.",
                                  run};

/* Minimum PTX version of generated code: codegen/llvm_ptx.c requests it from LLVM. */
enum { EMITTED_PTX = 83 };

typedef struct findings {
  const kva_target *cpu_target; /* NULL: none */
  long cpus;
  char ptxas[512], ptxas_version[64]; /* "" : none */
  char jit_linker[512];               /* "" : none */
  kva_gpu_report gpu;
  kva_mpi mpi;            /* version "": none */
  const kva_cache *cache; /* NULL: cache_reason */
  const char *cache_reason;
  kva_cache_usage cache_usage;
} findings;

/* ---- collecting -------------------------------------------------------------------------------------------------- */

/* Parses "Cuda compilation tools, release 13.0, V13.0.48". */
static void read_ptxas_version(findings *f) {
  char command[600], line[256];
  if (!*f->ptxas || strchr(f->ptxas, '\'')) return;
  snprintf(command, sizeof command, "'%s' --version 2>/dev/null", f->ptxas);
  FILE *in = popen(command, "r");
  while (in && fgets(line, sizeof line, in)) {
    const char *release = strstr(line, "release ");
    if (release) sscanf(release, "release %63[^, \n]", f->ptxas_version);
  }
  if (in) pclose(in);
}

static void look(findings *f, kva_arena *arena) {
  f->cpus = sysconf(_SC_NPROCESSORS_ONLN);
  if (!kva_find_ptxas(f->ptxas, sizeof f->ptxas)) *f->ptxas = 0;
  read_ptxas_version(f);
  if (!kva_find_jit_linker(f->jit_linker, sizeof f->jit_linker)) *f->jit_linker = 0;
  kva_gpu_query(&f->gpu);
  if (kva_mpi_load(NULL, &f->mpi) != KVA_OK) f->mpi = (kva_mpi){0};
  f->cache = kva_user_cache(arena, &f->cache_reason);
  if (f->cache) f->cache_usage = kva_cache_measure(f->cache);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void print_gpus(const kva_gpu_report *r) {
  for (int i = 0; i < r->n_gpus; i++) {
    const kva_gpu *g = &r->gpus[i];
    printf("GPU %d        %s, compute capability %d.%d, %.1f GiB, %d multiprocessors, target %s\n", i, g->name,
           g->major, g->minor, (double)g->memory / (1 << 30), g->multiprocessors,
           g->target ? g->target : "none: too old");
  }
}

static void print_driver(const kva_gpu_report *r) {
  if (!r->driver) {
    printf("CUDA driver  none\n");
    return;
  }
  int ptx = kva_gpu_ptx_version(r->driver);
  printf("CUDA driver  for CUDA %d.%d, takes PTX %d.%d\n", r->driver / 1000, r->driver % 1000 / 10, ptx / 10, ptx % 10);
}

static void print_conclusions(const findings *f) {
  const kva_gpu_report *r = &f->gpu;
  bool usable = r->n_gpus && r->gpus[0].target && kva_gpu_ptx_version(r->driver) >= EMITTED_PTX;
  printf("\nModels run and train on the CPU; --device ptxsim runs GPU code on a simulator.\n");
  if (usable)
    printf("--device cuda uses GPU 0 and compiles for %s.\n", r->gpus[0].target);
  else if (r->n_gpus && r->gpus[0].target)
    printf("--device cuda: the driver is too old for PTX %d.%d; install one for CUDA 12.3 or newer.\n",
           EMITTED_PTX / 10, EMITTED_PTX % 10);
  else
    printf("No GPU code runs on a device here. %s.\n", r->driver_error);
  if (usable && r->blas)
    printf("Matrix products on the GPU come from cuBLASLt.\n");
  else if (usable)
    printf("Matrix products on the GPU are generated, which is slower. %s.\n", r->blas_error);
  if (!*f->ptxas) printf("Without ptxas (CUDA toolkit) nothing is lost: the driver compiles PTX itself.\n");
}

static const char *const feature_names[] = {"fma", "tensor_maps", "warpgroup_mma"}; /* by bit of kva_target_feature */
enum { FEATURES = sizeof feature_names / sizeof *feature_names };

static void print_features(const kva_target *t) {
  for (int i = 0; i < FEATURES; i++)
    if (kva_target_has(t, 1u << i)) printf(", %s", feature_names[i]);
  putchar('\n');
}

static void print_cpu_target(const kva_target *t) {
  printf("CPU target   %s: %d vector registers of %d bytes, L2 %lld KiB, %d cores", t->description, t->vector_registers,
         t->vector_bytes, (long long)t->l2_bytes >> 10, t->cores);
  print_features(t);
}

static void print_gpu_targets(void) {
  uint32_t n;
  const kva_target *gpus = kva_target_gpus(&n);
  for (uint32_t i = 0; i < n; i++) {
    printf("%s  %-8s %d multiprocessors of %u registers, subgroups of %d, %u KiB shared memory, %u for a long row",
           i ? "           " : "GPU targets", gpus[i].arch, gpus[i].multiprocessors, gpus[i].registers,
           gpus[i].subgroup_width, gpus[i].shared_bytes >> 10, gpus[i].row_bytes >> 10);
    print_features(&gpus[i]);
  }
}

static void print_cache(const findings *f) {
  const kva_cache_usage *u = &f->cache_usage;
  if (!f->cache)
    printf("cache        off: %s\n", f->cache_reason);
  else if (!u->usable)
    printf("cache        off: %s is not a folder that this user alone may write to\n", f->cache->folder);
  else
    printf("cache        %s, %lld compiled modules, %.1f of %.0f MiB\n", f->cache->folder, (long long)u->entries,
           (double)u->bytes / (1 << 20), (double)f->cache->max_bytes / (1 << 20));
}

static void print_mpi(const kva_mpi *m) {
  printf("MPI          %s%s%s\n", *m->version ? m->version : "none", *m->version ? "; " : "", m->path ? m->path : "");
}

static void print_libraries(void) {
  kva_text_library libraries[KVA_TEXT_LIBRARIES];
  kva_tokenizer_libraries(libraries);
  for (int i = 0; i < KVA_TEXT_LIBRARIES; i++)
    printf("%s%s %s", i ? ", " : "libraries    ", libraries[i].name, libraries[i].version);
  printf(", libcsv %s, libmicrohttpd %s\n", kva_items_library(), kva_server_library() ? kva_server_library() : "none");
}

static void print_text(const findings *f) {
  printf("kvasir       %s\n", KVA_VERSION);
  if (f->cpu_target)
    print_cpu_target(f->cpu_target);
  else
    printf("CPU target   none\n");
  printf("CPUs         %ld\nPTX          %d.%d from LLVM\n", f->cpus, EMITTED_PTX / 10, EMITTED_PTX % 10);
  print_gpu_targets();
  print_driver(&f->gpu);
  print_gpus(&f->gpu);
  if (f->gpu.blas)
    printf("cuBLASLt     %zu, %s\n", f->gpu.blas, f->gpu.blas_path);
  else
    printf("cuBLASLt     none\n");
  if (*f->gpu.nccl_path)
    printf("NCCL         %d, %s\n", f->gpu.nccl, f->gpu.nccl_path);
  else
    printf("NCCL         none\n");
  if (*f->ptxas)
    printf("ptxas        %s, %s\n", *f->ptxas_version ? f->ptxas_version : "version unknown", f->ptxas);
  else
    printf("ptxas        none\n");
  printf("nvJitLink    %s\n", *f->jit_linker ? f->jit_linker : "none");
  print_mpi(&f->mpi);
  print_cache(f);
  print_libraries();
  printf("images       %s\n", kva_image_formats());
  print_conclusions(f);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void add_string(kva_text *out, const char *name, const char *value) {
  kva_text_add(out, "\"%s\": ", name);
  if (value && *value)
    kva_text_add_quoted(out, value);
  else
    kva_text_add(out, "null");
}

static void add_version(kva_text *out, const char *name, int version, int major, int minor) {
  if (version)
    kva_text_add(out, "\"%s\": \"%d.%d\"", name, major, minor);
  else
    kva_text_add(out, "\"%s\": null", name);
}

static void add_cuda(kva_text *out, const kva_gpu_report *r) {
  int ptx = kva_gpu_ptx_version(r->driver);
  kva_text_add(out, "\"cuda\": {");
  add_version(out, "driver", r->driver, r->driver / 1000, r->driver % 1000 / 10);
  kva_text_add(out, ", ");
  add_version(out, "ptx", ptx, ptx / 10, ptx % 10);
  kva_text_add(out, ", ");
  add_string(out, "error", r->driver_error);
  kva_text_add(out, ", \"devices\": [");
  for (int i = 0; i < r->n_gpus; i++) {
    const kva_gpu *g = &r->gpus[i];
    kva_text_add(out, "%s{", i ? ", " : "");
    add_string(out, "name", g->name);
    kva_text_add(out, ", \"capability\": \"%d.%d\", \"memory\": %lld, \"multiprocessors\": %d, ", g->major, g->minor,
                 (long long)g->memory, g->multiprocessors);
    add_string(out, "target", g->target);
    kva_text_add(out, "}");
  }
  kva_text_add(out, "]}");
}

static void add_features(kva_text *out, const kva_target *t) {
  const char *before = "";
  kva_text_add(out, "\"features\": [");
  for (int i = 0; i < FEATURES; i++) {
    if (!kva_target_has(t, 1u << i)) continue;
    kva_text_add(out, "%s\"%s\"", before, feature_names[i]);
    before = ", ";
  }
  kva_text_add(out, "]");
}

static void add_cpu_target(kva_text *out, const kva_target *t) {
  add_string(out, "cpu_target", t ? t->description : NULL);
  if (!t) return;
  kva_text_add(out, ", \"cpu\": {\"vector_bytes\": %d, \"vector_registers\": %d, \"l2_bytes\": %lld, \"cores\": %d, ",
               t->vector_bytes, t->vector_registers, (long long)t->l2_bytes, t->cores);
  add_features(out, t);
  kva_text_add(out, "}");
}

static void add_gpu_targets(kva_text *out) {
  uint32_t n;
  const kva_target *gpus = kva_target_gpus(&n);
  kva_text_add(out, ", \"gpu_targets\": [");
  for (uint32_t i = 0; i < n; i++) {
    const kva_target *t = &gpus[i];
    kva_text_add(out,
                 "%s{\"name\": \"%s\", \"multiprocessors\": %d, \"registers\": %u, \"subgroup_width\": %d, "
                 "\"shared_bytes\": %u, \"row_bytes\": %u, ",
                 i ? ", " : "", t->arch, t->multiprocessors, t->registers, t->subgroup_width, t->shared_bytes,
                 t->row_bytes);
    add_features(out, t);
    kva_text_add(out, "}");
  }
  kva_text_add(out, "]");
}

static void add_libraries(kva_text *out) {
  kva_text_library libraries[KVA_TEXT_LIBRARIES];
  kva_tokenizer_libraries(libraries);
  kva_text_add(out, ", \"libraries\": {");
  for (int i = 0; i < KVA_TEXT_LIBRARIES; i++) {
    kva_text_add(out, "%s", i ? ", " : "");
    add_string(out, libraries[i].name, libraries[i].version);
  }
  kva_text_add(out, ", ");
  add_string(out, "libcsv", kva_items_library());
  kva_text_add(out, ", ");
  add_string(out, "libmicrohttpd", kva_server_library());
  kva_text_add(out, "}");
}

static void print_json(const findings *f) {
  kva_text out = {0};
  kva_text_add(&out, "{\"version\": \"%s\", ", KVA_VERSION);
  add_cpu_target(&out, f->cpu_target);
  add_gpu_targets(&out);
  kva_text_add(&out, ", \"cpus\": %ld, \"emitted_ptx\": \"%d.%d\", ", f->cpus, EMITTED_PTX / 10, EMITTED_PTX % 10);
  add_cuda(&out, &f->gpu);
  kva_text_add(&out, ", \"cublaslt\": {\"version\": %zu, ", f->gpu.blas);
  add_string(&out, "path", f->gpu.blas_path);
  kva_text_add(&out, ", ");
  add_string(&out, "error", f->gpu.blas_error);
  kva_text_add(&out, "}, \"nccl\": {\"version\": %d, ", f->gpu.nccl);
  add_string(&out, "path", f->gpu.nccl_path);
  kva_text_add(&out, ", ");
  add_string(&out, "error", f->gpu.nccl_error);
  kva_text_add(&out, "}, \"ptxas\": {");
  add_string(&out, "path", f->ptxas);
  kva_text_add(&out, ", ");
  add_string(&out, "version", f->ptxas_version);
  kva_text_add(&out, "}, \"nvjitlink\": {");
  add_string(&out, "path", f->jit_linker);
  kva_text_add(&out, "}, \"mpi\": {");
  add_string(&out, "path", f->mpi.path);
  kva_text_add(&out, ", ");
  add_string(&out, "version", f->mpi.version);
  kva_text_add(&out, "}, \"cache\": {");
  add_string(&out, "folder", f->cache && f->cache_usage.usable ? f->cache->folder : NULL);
  kva_text_add(&out, ", \"entries\": %lld, \"bytes\": %lld", (long long)f->cache_usage.entries,
               (long long)f->cache_usage.bytes);
  kva_text_add(&out, "}");
  add_libraries(&out);
  kva_text_add(&out, ", \"images\": \"%s\"", kva_image_formats());
  printf("%s}\n", out.data);
  kva_text_free(&out);
}

static int run(int argc, char **argv) {
  bool json = false;
  const kva_option options[] = {{"--json", NULL, NULL, KVA_OPTION_FLAG, &json, "print a JSON object"}};
  int n_positional, code = kva_cli_parse(&kva_verb_doctor, argc, argv, options, 1, NULL, 0, &n_positional);
  if (code >= 0) return code;
  kva_diag *diag = kva_diag_create();
  kva_arena *arena = kva_arena_create();
  kva_codegen *cg = NULL;
  findings f = {0};
  kva_status status = kva_codegen_create(&(kva_target_options){.opt_level = 2}, diag, &cg);
  if (status == KVA_OK) f.cpu_target = kva_codegen_target(cg);
  look(&f, arena);
  (json ? print_json : print_text)(&f);
  if (status != KVA_OK) code = kva_cli_fail(status, diag);
  kva_codegen_destroy(cg);
  kva_arena_destroy(arena);
  kva_diag_destroy(diag);
  return status == KVA_OK ? EXIT_DONE : EXIT_MACHINE;
}
