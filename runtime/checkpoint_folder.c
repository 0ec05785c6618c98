/* Folders of checkpoints. A checkpoint is a file named exactly step-DIGITS.safetensors. A kva_file_write that is killed
 * leaves step-DIGITS.safetensors.PID.tmp, which never counts. */
#include "runtime/checkpoint.h"

#include "runtime/base/platform.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define PREFIX "step-"
#define SUFFIX ".safetensors"

char *kva_checkpoint_path(const char *folder, int64_t step) {
  char *path = NULL;
  return asprintf(&path, "%s/" PREFIX "%010lld" SUFFIX, folder, (long long)step) < 0 ? NULL : path;
}

/* The rest of the name after PREFIX and digits; NULL if the name does not start so. */
static const char *parse_name(const char *name, int64_t *step) {
  if (strncmp(name, PREFIX, sizeof PREFIX - 1)) return NULL;
  const char *at = name + sizeof PREFIX - 1, *first = at;
  for (*step = 0; isdigit((unsigned char)*at); at++)
    if (!kva_mul_size(*step, 10, step) || !kva_add_size(*step, *at - '0', step)) return NULL;
  return at - first >= 10 ? at : NULL;
}

static bool is_checkpoint(const char *name, int64_t *step) {
  const char *rest = parse_name(name, step);
  return rest && !strcmp(rest, SUFFIX);
}

/* Whether it is a temporary file of a process that no longer exists. */
static bool is_left_over(const char *name) {
  int64_t step;
  const char *rest = parse_name(name, &step);
  if (!rest || strncmp(rest, SUFFIX ".", sizeof SUFFIX)) return false;
  char *end;
  long pid = strtol(rest + sizeof SUFFIX, &end, 10);
  return pid > 0 && !strcmp(end, ".tmp") && kill((pid_t)pid, 0) && errno == ESRCH;
}

static kva_status folder_error(const char *folder, const char *doing, kva_diag *diag) {
  kva_loc loc = {.file = folder};
  return kva_fail(diag, KVA_IO, &loc, "cannot %s: %s", doing, strerror(errno));
}

static int ascending(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

static kva_status read_steps(DIR *dir, kva_diag *diag, int64_t *n, int64_t **steps) {
  int64_t capacity = 0, step;
  for (struct dirent *e; (e = readdir(dir));) {
    if (!is_checkpoint(e->d_name, &step)) continue;
    if (*n == capacity) {
      capacity = capacity ? 2 * capacity : 16;
      int64_t *grown = realloc(*steps, (size_t)capacity * sizeof *grown);
      if (!grown) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a list of checkpoints");
      *steps = grown;
    }
    (*steps)[(*n)++] = step;
  }
  if (*n) qsort(*steps, (size_t)*n, sizeof **steps, ascending);
  return KVA_OK;
}

kva_status kva_checkpoint_list(const char *folder, kva_diag *diag, int64_t *out_n, int64_t **out_steps) {
  *out_n = 0;
  *out_steps = NULL;
  DIR *dir = opendir(folder);
  if (!dir) return errno == ENOENT ? KVA_OK : folder_error(folder, "read the folder", diag);
  kva_status status = read_steps(dir, diag, out_n, out_steps);
  closedir(dir);
  return status;
}

kva_status kva_checkpoint_prepare(const char *folder, kva_diag *diag) {
  KVA_TRY(kva_folder_make(folder, 0777, diag));
  DIR *dir = opendir(folder);
  if (!dir) return folder_error(folder, "read the folder", diag);
  for (struct dirent *e; (e = readdir(dir));)
    if (is_left_over(e->d_name)) (void)unlinkat(dirfd(dir), e->d_name, 0);
  closedir(dir);
  return KVA_OK;
}

kva_status kva_checkpoint_set_aside(const char *folder, int64_t step, kva_diag *diag) {
  char *from = kva_checkpoint_path(folder, step), *to = NULL;
  kva_status status = from && asprintf(&to, "%s.damaged", from) >= 0 ? KVA_OK : KVA_NO_MEMORY;
  if (status == KVA_OK && rename(from, to)) status = folder_error(from, "rename the damaged checkpoint", diag);
  free(from);
  free(to);
  return status;
}

kva_status kva_checkpoint_prune(const char *folder, int64_t keep, kva_diag *diag) {
  int64_t n, *steps;
  KVA_TRY(kva_checkpoint_list(folder, diag, &n, &steps));
  kva_status status = KVA_OK;
  for (int64_t i = 0; status == KVA_OK && i < n - keep; i++) {
    char *path = kva_checkpoint_path(folder, steps[i]);
    if (!path) status = KVA_NO_MEMORY;
    if (path && unlink(path) && errno != ENOENT) status = folder_error(path, "remove the old checkpoint", diag);
    free(path);
  }
  free(steps);
  return status;
}
