/* Models with values from checkpoints of other programs. */
#include "tools/checkpoint/checkpoint.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- the model that a checkpoint is of --------------------------------------------------------------------------- */

/* With nothing defined: its blocks alone are wanted. */
static kva_status read_names(const char *model, const kva_foreign *f, kva_diag *diag, kva_module **out_module,
                             const kva_names **out_names) {
  KVA_TRY(kva_load_model(model, NULL, diag, out_module));
  return kva_foreign_names(f, *out_module, model, diag, out_names);
}

static bool model_suits(const char *model, const kva_foreign *f) {
  kva_diag *ignored = kva_diag_create();
  kva_module *m = NULL;
  const kva_names *names;
  bool suits = read_names(model, f, ignored, &m, &names) == KVA_OK && kva_foreign_suits(f, names);
  kva_module_destroy(m);
  kva_diag_destroy(ignored);
  return suits;
}

/* The first of a folder's models, by name, that suits. */
static const char *pick_in(const char *folder, const kva_foreign *f, kva_arena *arena) {
  struct dirent **entries;
  int n = scandir(folder, &entries, NULL, alphasort);
  const char *found = NULL;
  for (int i = 0; i < n; i++) {
    size_t length = strlen(entries[i]->d_name);
    bool text = length > 3 && !strcmp(entries[i]->d_name + length - 3, ".kv");
    const char *path = kva_arena_printf(arena, "%s/%s", folder, entries[i]->d_name);
    if (text && !found && model_suits(path, f)) found = path;
    free(entries[i]);
  }
  if (n >= 0) free(entries);
  return found;
}

/* Among the models that are installed with the tool, or that lie in its source tree. */
static kva_status pick(const kva_foreign *f, kva_arena *arena, kva_diag *diag, const char **out_model) {
  static const char *const places[] = {"../share/kvasir/models", "../../models"};
  char self[4096];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  char *slash = strrchr(self, '/');
  if (slash) *slash = 0;
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    *out_model = pick_in(kva_arena_printf(arena, "%s/%s", self, places[i]), f, arena);
    if (*out_model) return KVA_OK;
  }
  return kva_fail(
      diag, KVA_UNSUPPORTED, &(kva_loc){.file = f->path},
      "no .kv file beside the tool is for this model; name one that has a block `checkpoint %s` for it, and "
      "give this as its --weights",
      f->format);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* The caller's definitions come last: they win. */
static kva_load_options with_defines(const kva_load_options *options, uint32_t n, const kva_define *defines,
                                     kva_arena *arena) {
  kva_load_options o = *options;
  kva_define *all = KVA_NEW_ARRAY(arena, kva_define, n + options->n_defines + 1);
  if (n) memcpy(all, defines, n * sizeof *all);
  if (options->n_defines) memcpy(all + n, options->defines, options->n_defines * sizeof *all);
  o.defines = all;
  o.n_defines = n + options->n_defines;
  return o;
}

static kva_status load_model(const char *model, const kva_foreign *f, const kva_load_options *options, kva_arena *arena,
                             kva_diag *diag, kva_module **out) {
  kva_module *plain = NULL;
  const kva_names *names;
  uint32_t n = 0;
  const kva_define *defines = NULL;
  kva_status status = read_names(model, f, diag, &plain, &names);
  if (status == KVA_OK) status = kva_foreign_defines(f, names, arena, diag, &n, &defines);
  const kva_load_options own = with_defines(options, n, defines, arena);
  if (status == KVA_OK) status = kva_load_model(model, &own, diag, out);
  kva_module_destroy(plain);
  return status;
}

kva_status kva_foreign_load(const char *model, const kva_foreign *f, const kva_load_options *options, bool packed,
                            kva_diag *diag, kva_module **out_module) {
  kva_arena *arena = kva_arena_create();
  const kva_names *names;
  *out_module = NULL;
  kva_status status = model ? KVA_OK : pick(f, arena, diag, &model);
  if (status == KVA_OK) status = load_model(model, f, options, arena, diag, out_module);
  if (status == KVA_OK) status = kva_foreign_names(f, *out_module, model, diag, &names);
  if (status == KVA_OK) status = kva_foreign_fill(*out_module, f, names, packed, diag);
  if (status != KVA_OK) {
    kva_module_destroy(*out_module);
    *out_module = NULL;
  }
  kva_arena_destroy(arena);
  return status;
}
