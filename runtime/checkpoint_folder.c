/* Folders of checkpoints. A checkpoint is a file named exactly step-DIGITS.safetensors, or a folder step-DIGITS. A
 * process that is killed while it writes or removes one leaves that name with .PID.tmp, which never counts. */
#include "runtime/checkpoint.h"

#include "runtime/base/platform.h"
#include "runtime/shards.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "step-"
#define BEST   "best"
#define SUFFIX ".safetensors"

static char *path_of(const char *folder, const char *name, bool in_shards) {
  char *path = NULL;
  return asprintf(&path, "%s/%s%s", folder, name, in_shards ? "" : SUFFIX) < 0 ? NULL : path;
}

char *kva_checkpoint_path(const char *folder, int64_t step, bool in_shards) {
  char name[sizeof PREFIX + 20];
  snprintf(name, sizeof name, PREFIX "%010lld", (long long)step);
  return path_of(folder, name, in_shards);
}

char *kva_checkpoint_find(const char *folder, int64_t step) {
  char *path = kva_checkpoint_path(folder, step, false);
  if (!path || !access(path, F_OK)) return path;
  free(path);
  return kva_checkpoint_path(folder, step, true);
}

char *kva_checkpoint_best(const char *folder, bool in_shards) {
  return path_of(folder, BEST, in_shards);
}

/* The rest of the name after PREFIX and digits; NULL if the name does not start so. */
static const char *parse_name(const char *name, int64_t *step) {
  if (strncmp(name, PREFIX, sizeof PREFIX - 1)) return NULL;
  const char *at = name + sizeof PREFIX - 1, *first = at;
  for (*step = 0; isdigit((unsigned char)*at); at++)
    if (!kva_mul_size(*step, 10, step) || !kva_add_size(*step, *at - '0', step)) return NULL;
  return at - first >= 10 ? at : NULL;
}

static bool is_folder_in(DIR *dir, const char *name) {
  struct stat st;
  return !fstatat(dirfd(dir), name, &st, 0) && S_ISDIR(st.st_mode);
}

static bool is_checkpoint(DIR *dir, const char *name, int64_t *step) {
  const char *rest = parse_name(name, step);
  return rest && (*rest ? !strcmp(rest, SUFFIX) : is_folder_in(dir, name));
}

static const char *without(const char *text, const char *prefix) {
  return strncmp(text, prefix, strlen(prefix)) ? text : text + strlen(prefix);
}

/* A process that has ended counts, too, while its parent has not asked for its exit code (a zombie, state Z of
 * proc(5)): the first process of a container may never ask. */
static bool has_ended(long pid) {
  char path[40], text[256];
  if (kill((pid_t)pid, 0)) return errno == ESRCH;
  snprintf(path, sizeof path, "/proc/%ld/stat", pid);
  FILE *f = fopen(path, "re");
  size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  text[n] = 0;
  const char *name_end = strrchr(text, ')');
  return name_end && !strncmp(name_end, ") Z", 3);
}

/* Whether it is a temporary file or folder of a process that no longer runs. */
static bool is_left_over(const char *name) {
  int64_t step;
  const char *rest = strncmp(name, BEST, sizeof BEST - 1) ? parse_name(name, &step) : name + sizeof BEST - 1;
  if (!rest) return false;
  rest = without(rest, SUFFIX);
  if (*rest != '.') return false;
  char *end;
  long pid = strtol(rest + 1, &end, 10);
  bool temporary = !strcmp(end, ".tmp") || !strcmp(end, ".tmp.old");
  return pid > 0 && temporary && has_ended(pid);
}

static kva_status folder_error(const char *folder, const char *doing, kva_diag *diag) {
  kva_loc loc = {.file = folder};
  return kva_fail(diag, KVA_IO, &loc, "cannot %s: %s", doing, strerror(errno));
}

static int ascending(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* A step may have a file and a folder. */
static int64_t distinct(int64_t n, int64_t *steps) {
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i++)
    if (!kept || steps[i] != steps[kept - 1]) steps[kept++] = steps[i];
  return kept;
}

static kva_status read_steps(DIR *dir, kva_diag *diag, int64_t *n, int64_t **steps) {
  int64_t capacity = 0, step;
  for (struct dirent *e; (e = readdir(dir));) {
    if (!is_checkpoint(dir, e->d_name, &step)) continue;
    if (*n == capacity) {
      capacity = capacity ? 2 * capacity : 16;
      int64_t *grown = realloc(*steps, (size_t)capacity * sizeof *grown);
      if (!grown) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a list of checkpoints");
      *steps = grown;
    }
    (*steps)[(*n)++] = step;
  }
  if (*n) qsort(*steps, (size_t)*n, sizeof **steps, ascending);
  *n = distinct(*n, *steps);
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

/* ---- removing ---------------------------------------------------------------------------------------------------- */

static bool is_part(const char *name) {
  return !strncmp(name, KVA_SHARDS_PREFIX, sizeof KVA_SHARDS_PREFIX - 1) ||
         !strncmp(name, KVA_SHARDS_INDEX, sizeof KVA_SHARDS_INDEX - 1);
}

kva_status kva_checkpoint_remove_folder(const char *path, kva_diag *diag) {
  DIR *dir = opendir(path);
  if (!dir) return errno == ENOENT ? KVA_OK : folder_error(path, "read the folder", diag);
  for (struct dirent *e; (e = readdir(dir));)
    if (is_part(e->d_name)) (void)unlinkat(dirfd(dir), e->d_name, 0);
  closedir(dir);
  return rmdir(path) ? folder_error(path, "remove the folder", diag) : KVA_OK;
}

kva_status kva_checkpoint_remove(const char *path, kva_diag *diag) {
  if (!unlink(path) || errno == ENOENT) return KVA_OK;
  if (errno != EISDIR && errno != EPERM) return folder_error(path, "remove the checkpoint", diag);
  char *temporary = kva_file_unfinished(path);
  if (!temporary) return KVA_NO_MEMORY;
  kva_status status = rename(path, temporary) ? folder_error(path, "remove the checkpoint", diag)
                                              : kva_checkpoint_remove_folder(temporary, diag);
  free(temporary);
  return status;
}

static void remove_left_over(const char *folder, DIR *dir, const char *name) {
  char *path = NULL;
  if (!unlinkat(dirfd(dir), name, 0) || asprintf(&path, "%s/%s", folder, name) < 0) return;
  (void)!kva_checkpoint_remove_folder(path, NULL);
  free(path);
}

kva_status kva_checkpoint_prepare(const char *folder, kva_diag *diag) {
  KVA_TRY(kva_folder_make(folder, 0777, diag));
  DIR *dir = opendir(folder);
  if (!dir) return folder_error(folder, "read the folder", diag);
  for (struct dirent *e; (e = readdir(dir));)
    if (is_left_over(e->d_name)) remove_left_over(folder, dir, e->d_name);
  closedir(dir);
  return KVA_OK;
}

kva_status kva_checkpoint_set_aside(const char *folder, int64_t step, kva_diag *diag) {
  char *from = kva_checkpoint_find(folder, step), *to = NULL;
  kva_status status = from && asprintf(&to, "%s.damaged", from) >= 0 ? KVA_OK : KVA_NO_MEMORY;
  if (status == KVA_OK) status = kva_checkpoint_remove(to, diag);
  if (status == KVA_OK && rename(from, to)) status = folder_error(from, "rename the damaged checkpoint", diag);
  free(from);
  free(to);
  return status;
}

static kva_status remove_step(const char *folder, int64_t step, kva_diag *diag) {
  kva_status status = KVA_OK;
  for (int in_shards = 0; status == KVA_OK && in_shards < 2; in_shards++) {
    char *path = kva_checkpoint_path(folder, step, in_shards);
    status = path ? kva_checkpoint_remove(path, diag) : KVA_NO_MEMORY;
    free(path);
  }
  return status;
}

kva_status kva_checkpoint_prune(const char *folder, int64_t keep, kva_diag *diag) {
  int64_t n, *steps;
  KVA_TRY(kva_checkpoint_list(folder, diag, &n, &steps));
  kva_status status = KVA_OK;
  for (int64_t i = 0; status == KVA_OK && i < n - keep; i++) status = remove_step(folder, steps[i], diag);
  free(steps);
  return status;
}
