/* What the main functions share. */
#include "runtime/exe/exe.h"

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
