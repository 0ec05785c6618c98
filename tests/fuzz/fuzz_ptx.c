/* Bytes as PTX: the parser returns, with a line and a reason where it refuses, and what it accepts runs within its
 * limit of steps. How it runs follows from the text. */
#include "tests/fuzz/fuzz.h"
#include "runtime/ptxsim/ptxsim.h"

#include <stdlib.h>

static char memory_of_kernels[4096] __attribute__((aligned(128)));

static const unsigned char *tensor_map(void) {
  static unsigned char map[KVA_PTXSIM_MAP_BYTES] __attribute__((aligned(64)));
  kva_ptxsim_map m = {.dtype = KVA_BF16,
                      .rank = 2,
                      .address = memory_of_kernels,
                      .dims = {64, 32},
                      .strides = {2, 128},
                      .box = {64, 32},
                      .swizzle = 128};
  fuzz_require(kva_ptxsim_encode_map(&m, NULL, map) == KVA_OK, "no tensor map");
  return map;
}

static void run_kernel(const kva_ptx_kernel *kernel, fuzz_bytes *b) {
  static const uint32_t blocks[] = {32, 64, 128, 256};
  static const char record[40000];
  const kva_ptx_kernel_info *info = kva_ptx_kernel_get_info(kernel);
  const unsigned char *map = tensor_map();
  const void *params[16];
  void *pointer = memory_of_kernels;
  uint32_t few = 2;
  if (info->n_params > 16) return;
  for (uint32_t k = 0; k < info->n_params; k++) {
    uint32_t size = info->params[k].size;
    params[k] = size == 8 ? (const void *)&pointer : size == 128 ? map : size == 4 ? (const void *)&few : record;
  }
  kva_ptx_memory *memory = kva_ptx_memory_create();
  fuzz_require(kva_ptx_memory_add(memory, memory_of_kernels, sizeof memory_of_kernels, true, "data") == KVA_OK,
               "no memory for a kernel");
  kva_ptx_options options = {.max_steps = 20000,
                             .lazy = fuzz_below(b, 2),
                             .schedule_seed = fuzz_below(b, 3),
                             .check_global = fuzz_below(b, 4) == 0,
                             .unchecked_shared = fuzz_below(b, 8) == 0};
  kva_ptx_dim3 grid = {1 + fuzz_below(b, 2), 1, 1}, block = {blocks[fuzz_below(b, 4)], 1, 1};
  kva_ptx_report report;
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_ptx_launch(kernel, memory, grid, block, fuzz_below(b, 2) * 33024, params, info->n_params,
                                     &options, diag, &report);
  fuzz_answer(status, status == KVA_OK, diag);
  if (status == KVA_OK) kva_ptx_report_free(&report);
  kva_diag_destroy(diag);
  kva_ptx_memory_destroy(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint64_t hashes[2] = {kva_hash(0, data, size), kva_hash(1, data, size)};
  fuzz_bytes how = {(const uint8_t *)hashes, sizeof hashes};
  char *text = malloc(size + 1);
  if (!text) return 0;
  memcpy(text, data, size);
  text[size] = 0;
  kva_diag *diag = kva_diag_create();
  kva_ptx_module *m = NULL;
  kva_status status = kva_ptx_module_create(text, size, "fuzz.ptx", diag, &m);
  fuzz_answer(status, m != NULL, diag);
  if (status != KVA_OK) {
    kva_loc loc = {0};
    fuzz_require(strlen(kva_diag_message(diag, 0, NULL, &loc)) > 3 && loc.line > 0, "an error without a line");
  }
  for (uint32_t k = 0; m && k < kva_ptx_module_n_kernels(m) && k < 2; k++)
    run_kernel(kva_ptx_module_kernel_at(m, k), &how);
  kva_ptx_module_destroy(m);
  kva_diag_destroy(diag);
  free(text);
  return 0;
}
