/* The dialect of hints to CPUs. */
#include "ir/dialect_cpu.h"
#include "ir/dialect.h"

static const kva_intrinsic_info rows[] = {
#define ROW(name, type, features, operands) {#name, operands, type, features},
    KVA_CPU_ROWS(ROW)
#undef ROW
};

static const char *check(const kva_kernel *k, const kva_kinstr *i) {
  (void)k, (void)i;
  return NULL;
}

const kva_dialect kva_dialect_cpu = {"cpu", KVA_TARGET_CPU, rows, sizeof rows / sizeof *rows, check};
