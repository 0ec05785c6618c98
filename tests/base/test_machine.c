/* Memory of the machine, read from trees made here: control groups of both versions, with groups around them. */
#include "runtime/base/platform.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char root[64];

static const char *in_root(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", root, name);
  return path;
}

/* Writes a file below root, or removes it; folders are made on the way. */
static void put(const char *name, const char *content) {
  char path[256];
  snprintf(path, sizeof path, "%s", in_root(name));
  for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
    *p = 0;
    mkdir(path, 0777);
  }
  if (content)
    assert_int_equal(kva_file_write(path, content, strlen(content), NULL), KVA_OK);
  else
    remove(path);
}

static int make_root(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/kvasir-test-XXXXXX");
  return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", root);
  return system(command);
}

static void expect(int64_t whole, int64_t available) {
  kva_memory_size size = kva_machine_memory(root);
  assert_int_equal(size.whole, whole);
  assert_int_equal(size.available, available);
}

#define MIB(n) ((int64_t)(n) << 20)

static void reads_the_machine(void **state) {
  (void)state;
  kva_memory_size here = kva_machine_memory("");
  assert_true(here.whole > MIB(64) && here.available > 0 && here.available <= here.whole);
  expect(0, 0);
  put("proc/meminfo", "MemTotal:      65536 kB\nMemFree:  1 kB\n");
  expect(0, 0);
  put("proc/meminfo", "MemTotal:      65536 kB\nMemFree:  1 kB\nMemAvailable:    32768 kB\nSwapTotal:  16384 kB\n");
  expect(MIB(80), MIB(32));
}

static void is_limited_by_groups(void **state) {
  (void)state;
  put("proc/self/cgroup", "0::/outer/inner\n");
  expect(MIB(80), MIB(32));
  put("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  expect(MIB(80), MIB(32));
  put("sys/fs/cgroup/outer/memory.max", "41943040\n");
  expect(MIB(40 + 16), MIB(32));
  put("sys/fs/cgroup/outer/memory.swap.max", "1048576\n");
  expect(MIB(40 + 1), MIB(32));
  put("sys/fs/cgroup/outer/inner/memory.max", "8388608\n");
  put("sys/fs/cgroup/outer/inner/memory.swap.max", "max\n");
  expect(MIB(8 + 16), MIB(8));
  /* A path of the host: in the container its group is the root. */
  put("proc/self/cgroup", "0::/elsewhere\n");
  expect(MIB(80), MIB(32));
  put("sys/fs/cgroup/memory.max", "16777216\n");
  expect(MIB(16 + 16), MIB(16));
  put("sys/fs/cgroup/memory.max", NULL);
}

static void is_limited_by_groups_of_version_1(void **state) {
  (void)state;
  put("proc/self/cgroup", "5:cpu:/\n4:memory:/job\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  expect(MIB(80), MIB(32));
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4194304\n");
  expect(MIB(4 + 16), MIB(4));
  put("sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes", "4194304\n");
  expect(MIB(4), MIB(4));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_the_machine),
      cmocka_unit_test(is_limited_by_groups),
      cmocka_unit_test(is_limited_by_groups_of_version_1),
  };
  return cmocka_run_group_tests(tests, make_root, remove_root);
}
