/* What a register tile of a contraction costs on a CPU, for its kernels. */
#include "codegen/kernels/cpu/contract/contract.h"

#include <math.h>

enum {
  PRODUCTS_PER_CYCLE = 2, /* of vectors */
  INTEGERS_PER_CYCLE = 4, /* instructions of vectors of integers */
  OF_PRODUCT = 4,         /* of them, for a product of words whose bytes are split (codegen/llvm_dot.c) */
  OF_A = 2,               /* to split a word of a, and a vector of words of b */
  OF_B = 3,
  LOADS_PER_CYCLE = 2,
  LATENCY = 5, /* of a product: 4, and nothing starts as soon as it can */
  MIN_STEPS_AHEAD = 64,
  L2_BYTES_PER_CYCLE = 24, /* that a loop over a panel gets, whatever data sheets say */
  LINE = 64,
  L1_WAYS = 8, /* at least, of the first cache, each of a page's size */
  L1_WAY = 4096,
};

/* Words of bytes are split for products (codegen/llvm_dot.c): a factor takes two registers. */
static bool splits_words(const kva_target *t, kva_dtype sums) {
  return sums == KVA_I32 && !kva_target_sums_bytes(t);
}

int64_t kva_contract_most_rows(const kva_target *t, kva_dtype sums, int64_t vectors) {
  static const int64_t with_32[] = {0, 14, 14, 8, 6}, with_16[] = {0, 12, 6, 4, 2};
  static const int64_t split_32[] = {0, 14, 12, 7, 5}, split_16[] = {0, 10, 4, 2, 1};
  bool many = t->vector_registers >= 32;
  if (splits_words(t, sums)) return many ? split_32[vectors] : split_16[vectors];
  return many ? with_32[vectors] : with_16[vectors];
}

/* Of a step's products. */
static double products_cycles(const kva_target *t, kva_dtype sums, int64_t rows, int64_t vectors) {
  if (!splits_words(t, sums)) return (double)(rows * vectors) / PRODUCTS_PER_CYCLE;
  return (double)(OF_PRODUCT * rows * vectors + OF_A * rows + OF_B * vectors) / INTEGERS_PER_CYCLE;
}

double kva_contract_step_cycles(const kva_target *t, kva_dtype sums, int64_t rows, int64_t vectors) {
  double products = products_cycles(t, sums, rows, vectors), loads = (double)(rows + vectors) / LOADS_PER_CYCLE;
  double panel = (double)(vectors * t->vector_bytes) / L2_BYTES_PER_CYCLE;
  return fmax(fmax(products, loads), fmax(panel, LATENCY));
}

double kva_contract_rows_cycles(int64_t rows, int64_t bytes_apart) {
  int64_t step = bytes_apart & -bytes_apart; /* the largest power of two that divides the distance */
  if (step > L1_WAY) step = L1_WAY;
  int64_t sets = step > LINE ? L1_WAY / step : L1_WAY / LINE;
  return kva_ceil_div(rows, sets) > L1_WAYS ? (double)(rows * LINE) / L2_BYTES_PER_CYCLE : 0;
}

int64_t kva_contract_ahead(const kva_target *t, int64_t steps, int64_t result_bytes, int64_t tile_bytes) {
  return steps >= MIN_STEPS_AHEAD && result_bytes >= t->l2_bytes / 4 ? tile_bytes : 0;
}
