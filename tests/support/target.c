#include "tests/support/target.h"
#include "codegen/cache.h"

#include <stdio.h>
#include <stdlib.h>

bool sanitized(void) {
  return getenv("KVASIR_SANITIZED") != NULL;
}

const kva_cache *test_cache(void) {
  static char folder[4096];
  static const kva_cache cache = {.folder = folder};
  const char *shared = getenv("KVASIR_TEST_CACHE");
  /* Apart from the tools' entries, which a tool lists when it adds one. */
  if (shared) snprintf(folder, sizeof folder, "%s/tests", shared);
  return shared ? &cache : NULL;
}

kva_target_options test_target(int level, const char *arch) {
  const kva_cache *cache = test_cache();
  return (kva_target_options){.opt_level = sanitized() && !cache ? 0 : level, .arch = arch, .cache = cache};
}
