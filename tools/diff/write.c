/* A part as files. */
#include "tools/diff/diff.h"
#include "ops/ids.h"
#include "runtime/npy.h"

#include <stdlib.h>

enum { MAX_PATH = 4096, PRINTED_ELEMENTS = 64 }; /* larger tensors of a text are hashes: ir/README.md */

static bool is_large(const kva_node *n) {
  const kva_tensor_data *data = kva_is(n, KVA_OP_constant) ? ((const kva_constant_attrs *)n->attrs)->value : NULL;
  return data && kva_tensor_elements(data) > PRINTED_ELEMENTS;
}

static bool has_large_constants(const kva_module *m) {
  for (const kva_node *n = m->functions.data[0]->graph->first; n; n = n->next)
    if (is_large(n)) return true;
  return false;
}

static kva_status write_text(kva_module *m, const char *path, kva_diag *diag) {
  kva_text text = {0};
  kva_module_print(m, &text);
  kva_status status = kva_file_write(path, text.data, text.len, diag);
  kva_text_free(&text);
  return status;
}

static kva_status write_tensor(const kva_ref_tensor *w, const char *path, kva_diag *diag) {
  kva_tensor t = {.dtype = w->dtype, .rank = (int32_t)w->rank};
  memcpy(t.dims, w->dims, sizeof *w->dims * w->rank);
  int64_t bytes = kva_tensor_bytes(&t);
  if (bytes < 0 || !(t.data = malloc((size_t)bytes + 64))) return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  kva_ref_tensor_to_data(w, t.data);
  kva_status status = kva_npy_write(path, &t, diag);
  free(t.data);
  return status;
}

static kva_status write_inputs(const kva_diff_values *v, const kva_module *m, const char *dir, kva_diag *diag) {
  const kva_graph *g = m->functions.data[0]->graph;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    char path[MAX_PATH];
    kva_ref_tensor *w;
    snprintf(path, sizeof path, "%s/input%u.npy", dir, i);
    KVA_TRY(kva_diff_input(v, g->inputs.data[i], &w));
    kva_status status = write_tensor(w, path, diag);
    kva_ref_tensor_free(w);
    KVA_TRY(status);
    printf(" --input %s", path);
  }
  return KVA_OK;
}

kva_status kva_diff_write(const kva_diff_values *v, const kva_diff_part *part, const kva_diff_check *check,
                          const char *dir, kva_diag *diag) {
  char path[MAX_PATH];
  KVA_TRY(kva_folder_make(dir, 0777, diag));
  kva_module *m = kva_diff_module(v, part);
  m->diag = diag;
  bool large = has_large_constants(m);
  snprintf(path, sizeof path, "%s/model.%s", dir, large ? "onnx" : "kv");
  kva_status status = large ? kva_export_onnx(m, path, NULL, NULL, diag) : write_text(m, path, diag);
  if (status == KVA_OK) printf("to see it: kvasir %s %s", check->only_compile ? "show" : "diff", path);
  if (status == KVA_OK && !check->only_compile) status = write_inputs(v, m, dir, diag);
  if (status == KVA_OK) printf("%s\n", check->only_compile ? "" : check->target->arguments);
  kva_module_destroy(m);
  return status;
}
