/* Hashes of what goes into a run, and of what came of it. */
#include "tools/experiment/experiment.h"

#include "runtime/base/platform.h"

#include <dirent.h>
#include <stdlib.h>

static kva_status hash_file(const char *path, kva_diag *diag, uint64_t *hash) {
  kva_file file;
  KVA_TRY(kva_file_map(path, diag, &file));
  *hash = kva_hash(*hash, file.data, file.size);
  kva_file_unmap(&file);
  return KVA_OK;
}

static int is_visible(const struct dirent *entry) {
  return entry->d_name[0] != '.';
}

kva_status kva_exp_hash(const char *path, kva_arena *arena, kva_diag *diag, uint64_t *hash) {
  struct dirent **entries;
  int n = scandir(path, &entries, is_visible, alphasort);
  if (n < 0) return hash_file(path, diag, hash);
  kva_status status = KVA_OK;
  for (int i = 0; i < n; i++) {
    *hash = kva_hash(*hash, entries[i]->d_name, strlen(entries[i]->d_name) + 1);
    if (status == KVA_OK)
      status = kva_exp_hash(kva_arena_printf(arena, "%s/%s", path, entries[i]->d_name), arena, diag, hash);
    free(entries[i]);
  }
  free(entries);
  return status;
}
