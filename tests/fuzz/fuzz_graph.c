/* Random valid graphs through the whole compiler: see tests/support/graph_check.h. */
#include "tests/fuzz/fuzz.h"
#include "tests/support/graph_check.h"

#include <stdlib.h>

enum { HEADER = 8, MAX_NODES = 60 };

static graph_setting read_setting(const uint8_t *data, size_t size) {
  static const kva_dtype dtypes[] = {KVA_F64, KVA_F32, KVA_F32, KVA_F64, KVA_F16, KVA_BF16, KVA_F32, KVA_F64};
  static const int64_t extents[] = {3, 7, 1, 2, 5, 0, 4, 1};
  static const char *const symbols[] = {"B", "T", "N"};
  static const char *const cpus[] = {NULL, "x86-64-v3", "x86-64-v2", NULL};
  fuzz_bytes b = {data, HEADER};
  graph_setting s = {.graph = {.dtype = dtypes[fuzz_below(&b, 8)], .nodes = MAX_NODES}};
  uint32_t flags = fuzz_below(&b, 256), kind = fuzz_below(&b, 256);
  for (int i = 0; i < 3; i++) {
    uint32_t k = fuzz_below(&b, 64);
    s.sizes[0][i] = (eval_size){symbols[i], extents[k % 8]};
    s.sizes[1][i] = (eval_size){symbols[i], extents[k % 8] + k / 8 % 3};
  }
  s.graph.wide = flags & 3;
  s.graph.states = (flags & 12) == 12;
  s.graph.control = (flags & 48) == 48 && (s.graph.dtype == KVA_F32 || s.graph.dtype == KVA_F64);
  s.target = (kva_target_options){.opt_level = 1 + (kind & 1), .cpu = cpus[kind >> 1 & 3]};
  if ((kind & 0xE0) == 0xE0) s.target = (kva_target_options){.opt_level = 1, .arch = kind & 1 ? "sm_80" : "sm_90a"};
  s.graph.bytes = data + HEADER;
  s.graph.n_bytes = size - HEADER;
  return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size <= HEADER || size > 1000) return 0;
  graph_setting s = read_setting(data, size);
  s.graph.sizes = s.sizes[0];
  setenv("CMOCKA_TEST_ABORT", "1", 1); /* for what tests/support finds */
  kva_diag *diag = kva_diag_create();
  kva_module *m = random_graph(&s.graph, diag);
  if (fuzz_prints()) graph_print(&s, s.sizes[0], m);
  fuzz_require(graph_check(&s, m) == GRAPH_RIGHT, "a valid graph is refused, or its results differ");
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return 0;
}
