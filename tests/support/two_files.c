#include "tests/support/two_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/kvasir_data_XXXXXX";
char path_a[64], path_b[64];

int make_two_files(void **state) {
  (void)state;
  if (!mkdtemp(folder)) return -1;
  snprintf(path_a, sizeof path_a, "%s/a", folder);
  snprintf(path_b, sizeof path_b, "%s/b", folder);
  return 0;
}

int remove_two_files(void **state) {
  (void)state;
  unlink(path_a);
  unlink(path_b);
  return rmdir(folder);
}
