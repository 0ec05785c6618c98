/* Tensors that the processes of a mesh hold in parts. */
#ifndef KVA_BASE_PARTS_H
#define KVA_BASE_PARTS_H

#include <stdint.h>

/* Elements of each of `parts` equal parts of n elements, in order: process r has those from r times this number on.
 * What the last parts have beyond the n elements is zero. A multiple of 4, so that parts begin where initial values are
 * drawn together (runtime/state_init.c) and with whole bytes. */
static inline int64_t kva_part_elements(int64_t n, int64_t parts) {
  int64_t each = n / parts + (n % parts != 0);
  return (each + 3) / 4 * 4;
}

/* Of `n` units, which process `rank` of a mesh has in a part of `each`: those that are not beyond the end. */
static inline int64_t kva_part_filled(int64_t n, int64_t each, int64_t rank) {
  int64_t begin = rank * each;
  return begin >= n ? 0 : n - begin < each ? n - begin : each;
}

#endif
