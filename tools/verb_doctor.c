/* kvasir doctor: what this machine has, and what follows for Kvasir. */
#include "tools/cli.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_doctor = {"doctor", "[options]", "show what this machine offers and what follows from it",
                                  "Exit code 0 when models can be compiled and run on the CPU of this machine, else 3.",
                                  run};

static const char *driver_state(void) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!library) return "not found";
  dlclose(library);
  return "found";
}

static bool has_ptxas(void) {
  const char *path = getenv("PATH");
  for (const char *p = path; p && *p;) {
    size_t len = strcspn(p, ":");
    char file[4096];
    snprintf(file, sizeof file, "%.*s/ptxas", (int)len, p);
    if (access(file, X_OK) == 0) return true;
    p += len + (p[len] == ':');
  }
  return false;
}

static int run(int argc, char **argv) {
  bool json = false;
  const kva_option options[] = {{"--json", NULL, NULL, KVA_OPTION_FLAG, &json, "print a JSON object"}};
  int n_positional, code = kva_cli_parse(&kva_verb_doctor, argc, argv, options, 1, NULL, 0, &n_positional);
  if (code >= 0) return code;
  kva_diag *diag = kva_diag_create();
  kva_codegen *cg = NULL;
  kva_status status = kva_codegen_create(&(kva_target_options){.opt_level = 2}, diag, &cg);
  const char *target = status == KVA_OK ? kva_codegen_target(cg)->description : "none";
  long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  const char *format = json ? "{\"version\": \"%s\", \"cpu_target\": \"%s\", \"cpus\": %ld, \"cuda_driver\": \"%s\", "
                              "\"ptxas\": \"%s\"}\n"
                            : "kvasir       %s\nCPU target   %s\nCPUs         %ld\nCUDA driver  %s\nptxas        %s\n";
  printf(format, KVA_VERSION, target, cpus, driver_state(), has_ptxas() ? "found" : "not found");
  if (!json)
    printf("\nModels run and train on the CPU. GPU code (PTX) is generated and simulated, not yet run on a device.\n");
  if (status != KVA_OK) code = kva_cli_fail(status, diag);
  kva_codegen_destroy(cg);
  kva_diag_destroy(diag);
  return status == KVA_OK ? EXIT_DONE : EXIT_MACHINE;
}
