/* What the main functions share. */
#include "runtime/exe/exe.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *kva_info_get(const char *const *info, const char *key) {
  for (; info && info[0]; info += 2)
    if (!strcmp(info[0], key)) return info[1];
  return NULL;
}

const char *kva_exe_name(int argc, char **argv) {
  const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
  return slash ? slash + 1 : argc > 0 ? argv[0] : "model";
}

const char *kva_exe_beside(const char *name, kva_arena *arena) {
  char self[4096];
  ssize_t n = name ? readlink("/proc/self/exe", self, sizeof self - 1) : 0;
  self[n > 0 ? n : 0] = 0;
  char *slash = strrchr(self, '/');
  return slash ? kva_arena_printf(arena, "%.*s/%s", (int)(slash - self), self, name) : name;
}

bool kva_exe_same_file(const char *a, const char *b) {
  struct stat x, y;
  if (stat(a, &x) || stat(b, &y) || x.st_dev != y.st_dev || x.st_ino != y.st_ino) return false;
  return S_ISREG(x.st_mode);
}

/* Whether the folders of two paths are one; `length` is where a path's name begins. */
static bool same_folder(const char *a, size_t a_length, const char *b, size_t b_length) {
  char folder[2][4096];
  struct stat x, y;
  if (a_length >= sizeof *folder || b_length >= sizeof *folder) return false;
  snprintf(folder[0], sizeof *folder, "%.*s", a_length ? (int)a_length : 1, a_length ? a : ".");
  snprintf(folder[1], sizeof *folder, "%.*s", b_length ? (int)b_length : 1, b_length ? b : ".");
  return !stat(folder[0], &x) && !stat(folder[1], &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool kva_exe_same_output(const char *a, const char *b) {
  struct stat st;
  if (!a || !b) return false;
  if (!stat(a, &st) || !stat(b, &st)) return kva_exe_same_file(a, b);
  if (!strcmp(a, b)) return true; /* also in a folder that is made for it */
  const char *name = strrchr(a, '/'), *other = strrchr(b, '/');
  name = name ? name + 1 : a;
  other = other ? other + 1 : b;
  return !strcmp(name, other) && same_folder(a, (size_t)(name - a), b, (size_t)(other - b));
}
