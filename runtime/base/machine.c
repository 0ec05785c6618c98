/* Memory of the machine: /proc/meminfo, and the limits of the control groups that the process is in. */
#include "runtime/base/platform.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The number behind `key` in a file of lines "key: N kB"; false: there is none. */
static bool read_kib(const char *path, const char *key, int64_t *out_bytes) {
  FILE *in = fopen(path, "r");
  char line[256];
  size_t n = strlen(key);
  bool found = false;
  while (in && !found && fgets(line, sizeof line, in)) {
    if (strncmp(line, key, n) || line[n] != ':') continue;
    long long kib = atoll(line + n + 1);
    found = kib >= 0 && kib < INT64_MAX / 1024;
    if (found) *out_bytes = (int64_t)kib * 1024;
  }
  if (in) fclose(in);
  return found;
}

/* The number in a file of a control group; false: no such file, or "max". */
static bool read_limit(const char *folder, const char *name, int64_t *out_bytes) {
  char path[4096];
  int n = snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *in = n > 0 && n < (int)sizeof path ? fopen(path, "r") : NULL;
  long long bytes;
  bool found = in && fscanf(in, "%lld", &bytes) == 1 && bytes >= 0;
  if (in) fclose(in);
  if (found) *out_bytes = bytes;
  return found;
}

/* memory.max counts memory, memory.swap.max swap; in version 1 memory.memsw.limit_in_bytes counts both. Without a limit
 * of swap, all of the machine's may be used. */
static void lower(const char *folder, int64_t swap, kva_memory_size *size) {
  int64_t memory, limit, both;
  if (!read_limit(folder, "memory.max", &memory) && !read_limit(folder, "memory.limit_in_bytes", &memory)) return;
  if (read_limit(folder, "memory.swap.max", &limit) && limit < swap) swap = limit;
  if (read_limit(folder, "memory.memsw.limit_in_bytes", &both) && both >= memory && both - memory < swap)
    swap = both - memory;
  if (memory < size->whole - swap) size->whole = memory + swap;
  if (memory < size->available) size->available = memory;
}

/* A group's own limits and those of the groups around it. Inside a container the path may be that of the host, of which
 * only the root is there: the container's group. */
static void lower_by_group(const char *root, const char *mount, char *path, int64_t swap, kva_memory_size *size) {
  char folder[4096];
  path[strcspn(path, "\n")] = 0;
  for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
    *end = 0;
    if (snprintf(folder, sizeof folder, "%s%s%s", root, mount, path) < (int)sizeof folder) lower(folder, swap, size);
  }
}

/* Lines "number:controllers:path"; version 2 has no controllers there. */
static void lower_by_groups(const char *root, FILE *in, int64_t swap, kva_memory_size *size) {
  char line[4096];
  while (fgets(line, sizeof line, in)) {
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) continue;
    *path++ = 0;
    if (!controllers[1]) lower_by_group(root, "/sys/fs/cgroup", path, swap, size);
    if (!strcmp(controllers + 1, "memory")) lower_by_group(root, "/sys/fs/cgroup/memory", path, swap, size);
  }
}

kva_memory_size kva_machine_memory(const char *root) {
  char file[4096];
  kva_memory_size size;
  int64_t swap = 0;
  if (snprintf(file, sizeof file, "%s/proc/meminfo", root) >= (int)sizeof file) return (kva_memory_size){0};
  if (!read_kib(file, "MemTotal", &size.whole) || !read_kib(file, "MemAvailable", &size.available))
    return (kva_memory_size){0};
  if (read_kib(file, "SwapTotal", &swap)) size.whole += swap;
  snprintf(file, sizeof file, "%s/proc/self/cgroup", root);
  FILE *in = fopen(file, "r");
  if (!in) return size;
  lower_by_groups(root, in, swap, &size);
  fclose(in);
  return size;
}

bool kva_tiles_permit(void) {
#if defined __x86_64__ && defined SYS_arch_prctl
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
  return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#else
  return false;
#endif
}
