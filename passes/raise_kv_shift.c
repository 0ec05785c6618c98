#include "passes/raise.h"

kva_value *kva_raise_kv_shift(kva_builder *b) {
  (void)b;
  return NULL;
}
kva_value *kva_raise_hard_shift(kva_builder *b) {
  (void)b;
  return NULL;
}
