/* What a register tile of a contraction costs on a CPU, for its kernels. */
#include "codegen/kernels/cpu/contract/contract.h"

#include <math.h>

enum {
  PRODUCTS_PER_CYCLE = 2, /* of vectors */
  LOADS_PER_CYCLE = 2,
  LATENCY = 5, /* of a product: 4, and nothing starts as soon as it can */
  MIN_STEPS_AHEAD = 64,
  L2_BYTES_PER_CYCLE = 24, /* that a loop over a panel gets, whatever data sheets say */
  LINE = 64,
  L1_WAYS = 8, /* at least, of the first cache, each of a page's size */
  L1_WAY = 4096,
};

int64_t kva_contract_most_rows(const kva_target *t, int64_t vectors) {
  static const int64_t with_32[] = {0, 14, 14, 8, 6}, with_16[] = {0, 12, 6, 4, 2};
  return t->vector_registers >= 32 ? with_32[vectors] : with_16[vectors];
}

double kva_contract_step_cycles(const kva_target *t, int64_t rows, int64_t vectors) {
  double products = (double)(rows * vectors) / PRODUCTS_PER_CYCLE, loads = (double)(rows + vectors) / LOADS_PER_CYCLE;
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
