/* What the operators over the processes of a mesh share (KVA_EXCHANGES): all_reduce, reduce_scatter, all_gather,
 * own_part, process_index, neighbour, share. But for the last, each is a call of the runtime (runtime/call_exchange.c),
 * since kernels cannot access other processes. A part of a tensor is a vector: elements of the tensor in row-major
 * order, see kva_part_elements. The reference has one process, number 0, and takes all others to have what it has.
 *
 * A group of processes is `parts` of them whose ranks differ by multiples of `stride`, less than parts * stride apart:
 * those that differ in their place on one axis of the mesh.
 *
 * Gradients. An axis of the mesh that divides the work on one loss (passes/partition.c) has values of two kinds: those
 * that are the same in all processes, whose adjoints are the same, too, and those that each process has a slice of,
 * whose adjoints are of that slice. all_reduce leads from addends to a value that is the same: its gradient is the
 * identity. share leads from such a value to the work of each process: its gradient is the sum, all_reduce. */
#ifndef KVA_OPS_EXCHANGE_H
#define KVA_OPS_EXCHANGE_H

#include "ops/build.h"

/* Processes that an operator of this kind is made for; 0 for other operators. */
static inline int64_t kva_exchange_parts(const kva_node *n) {
  return n->op->traits & KVA_EXCHANGES ? ((const kva_exchange_attrs *)n->attrs)->parts : 0;
}

/* The same for `stride`. */
static inline int64_t kva_exchange_stride(const kva_node *n) {
  return n->op->traits & KVA_EXCHANGES ? ((const kva_exchange_attrs *)n->attrs)->stride : 0;
}

KVA_MUST_USE kva_status kva_check_exchange(kva_module *m, const kva_node *n);
/* The type of a part of a tensor of type t; NULL: its number of elements is not a constant. */
const kva_type *kva_part_type(kva_module *m, const kva_type *t, int64_t parts);
/* Inference of operators from a tensor to a part of it. */
KVA_MUST_USE kva_status kva_infer_part(kva_module *m, const kva_node *n, const kva_type **out_types);
/* Reference of these: process 0's part, times `factor`. */
void kva_ref_part(const kva_ref_tensor *x, kva_ref_tensor *y, int64_t factor);

#endif
