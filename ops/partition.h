/* Dividing a function among the processes of a group (passes/partition.c): what rules of operators share.
 *
 * Every value is either whole, the same in all processes, or split along one axis: process i has the i-th of `parts`
 * equal slices. An operator whose results have slice i where its operands have theirs needs no rule, only
 * kva_op_info.source_axis; one whose results are sums over an axis only kva_op_info.sums. For others the row's rule
 * `partition` builds nodes for slices, or returns false: then the operands are gathered and the node stays as it is,
 * which is always right. */
#ifndef KVA_OPS_PARTITION_H
#define KVA_OPS_PARTITION_H

#include "ops/build.h"

enum { KVA_WHOLE = -1 };

/* What there is of a value of the given function. */
typedef struct kva_partitioned {
  kva_value *whole, *shared, *slice; /* NULL: not made yet. shared: whole, for the work on slices */
  int axis;                          /* of the slice */
  bool split;                        /* it is made in slices; else `slice` is cut from the whole */
  const kva_state *origin;           /* the parameter that the slices come from; NULL: none, or several */
} kva_partitioned;

struct kva_partition {
  kva_builder *b;
  int64_t parts, stride;
  kva_value *index;    /* of this process; NULL: not made yet */
  kva_partitioned *of; /* by value id of the given function */
  /* Of the node that a rule is called for: results to set, and the axis of each. */
  kva_value **results;
  int *axes;
};

static inline kva_partitioned *kva_partitioned_operand(const kva_partition *p, const kva_node *n, uint32_t i) {
  return kva_operand(n, i) ? &p->of[kva_operand(n, i)->id] : NULL;
}
/* The axis along which operand i is split, or KVA_WHOLE. */
static inline int kva_split_axis(const kva_partition *p, const kva_node *n, uint32_t i) {
  const kva_partitioned *v = kva_partitioned_operand(p, n, i);
  return v && v->split ? v->axis : KVA_WHOLE;
}

/* Operand i in full, for work that all processes do alike; for work on slices; and this process's slice along `axis`,
 * whose extent must be divisible (kva_divides). NULL: it is left out. */
kva_value *kva_whole_operand(kva_partition *p, const kva_node *n, uint32_t i);
kva_value *kva_shared_operand(kva_partition *p, const kva_node *n, uint32_t i);
kva_value *kva_slice_operand(kva_partition *p, const kva_node *n, uint32_t i, uint32_t axis);
/* Whether an extent is a constant that the processes divide; *out_each: by that. */
bool kva_divides(const kva_partition *p, kva_dim extent, kva_dim *out_each);

/* An int64 scalar. */
kva_value *kva_own_index(kva_partition *p);
/* The sum over the processes, and what each has, stacked along a new axis 0. */
kva_value *kva_sum_over_processes(kva_partition *p, kva_value *addend);
kva_value *kva_stack_processes(kva_partition *p, kva_value *x);
/* What the process before this one has; zeros in the first one. */
kva_value *kva_previous_process(kva_partition *p, kva_value *x);

/* This process's slice of x. */
kva_value *kva_cut_slice(kva_partition *p, kva_value *x, uint32_t axis);
/* The same node for the slices of its one operand; its result has `added` axes before the operand's. */
bool kva_partition_alike(kva_partition *p, const kva_node *n, int added);

/* Reports that n cannot work on slices, naming the parameter that operand i comes from, or the operand. Fails the
 * builder. */
void kva_refuse_partition(kva_partition *p, const kva_node *n, uint32_t i, const char *fmt, ...) KVA_PRINTF(4, 5);

#endif
