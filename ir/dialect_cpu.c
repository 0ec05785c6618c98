/* The dialect of hints to CPUs. */
#include "ir/dialect_cpu.h"
#include "ir/dialect.h"

static const kva_intrinsic_info rows[] = {
#define ROW(name, type, features, operands) {#name, operands, type, features},
    KVA_CPU_ROWS(ROW)
#undef ROW
};

void kva_cpu_prefetch(kva_kb *b, kva_kbuf *buf, const kva_expr *index) {
  kva_kintrinsic i = {.op = KVA_CPU_prefetch};
  i.places[0] = (kva_kplace){buf, index};
  kva_k_intrinsic(b, &i, NULL);
}

static const char *check(const kva_kernel *k, const kva_kinstr *i) {
  (void)k, (void)i;
  return NULL;
}

const kva_dialect kva_dialect_cpu = {"cpu", KVA_TARGET_CPU, rows, sizeof rows / sizeof *rows, check};
