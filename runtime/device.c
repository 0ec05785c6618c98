/* Devices by name. */
#include "runtime/device.h"

/* libkvasir-rt has no simulator. */
static const kva_device_class *const classes[] = {
    &kva_device_cpu,
#ifndef KVA_DEPLOYED
    &kva_device_ptxsim,
#endif
    &kva_device_cuda,
};
enum { N_CLASSES = sizeof classes / sizeof *classes };

kva_status kva_device_find(const char *name, kva_diag *diag, const kva_device_class **out_class) {
  *out_class = NULL;
  for (int i = 0; i < N_CLASSES; i++)
    if (!strcmp(name ? name : "cpu", classes[i]->name)) *out_class = classes[i];
  if (*out_class) return KVA_OK;
  kva_text known = {0};
  for (int i = 0; i < N_CLASSES; i++) kva_text_add(&known, "%s%s", i ? ", " : "", classes[i]->name);
  kva_status status = kva_error(diag, NULL, "no device is called '%s'; there are: %s", name, known.data);
  kva_text_free(&known);
  return status;
}

kva_status kva_device_check(const char *name, kva_diag *diag, const char **out_arch) {
  const kva_device_class *class;
  KVA_TRY(kva_device_find(name, diag, &class));
  *out_arch = class->arch;
  return class->probe ? class->probe(diag, out_arch) : KVA_OK;
}
