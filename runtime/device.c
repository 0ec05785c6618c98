/* Devices by name. */
#include "runtime/device.h"

#include <stdlib.h>

#define ROW(name) &kva_device_##name,
static const kva_device_class *const classes[] = {KVA_EACH_DEVICE(ROW)};
enum { N_CLASSES = sizeof classes / sizeof *classes };

kva_status kva_device_find(const char *name, kva_diag *diag, const kva_device_class **out_class) {
  *out_class = NULL;
  for (int i = 0; i < N_CLASSES; i++)
    if (!strcmp(name ? name : "cpu", classes[i]->name)) *out_class = classes[i];
  if (*out_class) return KVA_OK;
  kva_text known = {0};
  for (int i = 0; i < N_CLASSES; i++) kva_text_add(&known, "%s%s", i ? ", " : "", classes[i]->name);
  kva_status status = kva_error(diag, NULL, "no device is called '%s'; there are: %s", name, kva_text_string(&known));
  kva_text_free(&known);
  return status;
}

kva_status kva_device_check(const char *name, kva_diag *diag, const char **out_arch) {
  const kva_device_class *class;
  KVA_TRY(kva_device_find(name, diag, &class));
  *out_arch = class->arch;
  return class->probe ? class->probe(diag, out_arch) : KVA_OK;
}

/* The number in an architecture's name: 90 for "sm_90a". */
static int number_of(const char *arch) {
  return strncmp(arch, "sm_", 3) ? -1 : atoi(arch + 3);
}

/* Code for "sm_80" runs on "sm_86"; code for "sm_90a" runs on "sm_90a" only. */
static bool suits(const char *code, const char *arch) {
  size_t n = strlen(code);
  bool exact = n && code[n - 1] == 'a';
  return !strcmp(code, arch) || (!exact && number_of(code) <= number_of(arch));
}

/* Prefers later architectures, and "sm_90a", the longer name, over "sm_90". */
static bool is_better(const char *a, const char *b) {
  int x = number_of(a), y = number_of(b);
  return x != y ? x > y : strlen(a) > strlen(b);
}

kva_status kva_device_choose(const char *name, const kva_artifact *a, kva_diag *diag,
                             const kva_artifact **out_artifact) {
  *out_artifact = a;
  if (!a->next) return KVA_OK;
  const char *arch;
  const kva_artifact *best = NULL;
  KVA_TRY(kva_device_check(name, diag, &arch));
  for (; a && arch; a = a->next)
    if (kva_artifact_arch(a) && suits(kva_artifact_arch(a), arch) &&
        (!best || is_better(kva_artifact_arch(a), kva_artifact_arch(best))))
      best = a;
  if (best) *out_artifact = best;
  return KVA_OK;
}

const char *kva_artifact_arch(const kva_artifact *a) {
  return a->n_codes ? a->codes[0].arch : NULL;
}

int32_t kva_device_code(const kva_device_class *class, const kva_artifact *a, int32_t from) {
  for (int32_t i = from; i < a->n_codes; i++)
    if (class->formats & 1u << a->codes[i].format) return i;
  return -1;
}
