/* Shared by the schedule_*.c files. */
#ifndef KVA_CODEGEN_SCHEDULE_INTERNAL_H
#define KVA_CODEGEN_SCHEDULE_INTERNAL_H

#include "codegen/codegen.h"

/* Cycles that a work item should take at least: about 4 us. Handing one to another thread costs a tenth of that. */
enum { KVA_ITEM_CYCLES = 16384 };

/* ---- schedule_cost.c: estimates ---------------------------------------------------------------------------------- */

/* A guess at the value of an extent: shape symbols count as 64. */
double kva_cost_extent(const kva_expr *extent);
/* Cycles of one run of everything in r; a VECTOR loop's body counts for `lanes` iterations. */
double kva_cost_region(const kva_kregion *r, int lanes);

/* How the accesses in a loop's body move with its variable, weighted by the loops between. */
typedef struct kva_strides {
  double unit, strided; /* coefficient 1; anything but 0 and 1. Stores count double */
  bool legal;           /* iterations may run side by side: order is free, no inner extent depends on the variable */
} kva_strides;
kva_strides kva_strides_of(kva_kernel *k, const kva_kloop *l);

/* ---- schedule_loops.c: rewriting --------------------------------------------------------------------------------- */

/* The only instruction of l's body when that is a loop of l's kind; NULL else. */
kva_kloop *kva_sched_inner(const kva_kloop *l);
/* Removes loops without iterations, whose extents nobody may divide by. */
void kva_sched_drop_empty(kva_kregion *r);
/* Merges perfectly nested PARALLEL loops below r wherever no division appears. */
void kva_sched_collapse(kva_kernel *k, kva_kregion *r);
/* Writes f = outer * extent(inner) + inner for the variables of two loops, in all indices in r. Where one of them needs
 * a division for that: with `divide` all get one, else nothing changes and the result is false. */
bool kva_sched_rejoin(kva_kernel *k, kva_kregion *r, kva_kloop *outer, kva_kloop *inner, const kva_expr *f,
                      bool divide);
/* l becomes `PARALLEL b < ceil(n / size) { l' < min(size, n - b*size) }`; returns the loop over b. */
kva_kloop *kva_sched_split(kva_kernel *k, kva_kloop *l, int64_t size);
/* The nest of PARALLEL loops rows[0..n) becomes one GRID loop whose items are `per_item` rows each. `order` is a
 * permutation of rows: the last of it moves fastest. */
kva_kloop *kva_sched_grid(kva_kernel *k, uint32_t n, kva_kloop *const *rows, kva_kloop *const *order,
                          const kva_expr *per_item);
/* Iterations of the whole nest. */
const kva_expr *kva_sched_count(kva_kernel *k, uint32_t n, kva_kloop *const *rows);
/* ---- schedule_reuse.c: rows kept for a second use ---------------------------------------------------------------- */

/* Costly functions that two VECTOR loops of one row both compute are kept in a local row in between. */
void kva_sched_reuse_rows(kva_kernel *k);

/* ---- schedule_nests.c: several nests ----------------------------------------------------------------------------- */

/* x as a value at the end of r. */
kva_kinstr *kva_sched_index_value(kva_kernel *k, kva_kregion *r, const kva_expr *x);
bool kva_sched_has_effects(kva_kinstr *i);
bool kva_sched_is_grid(const kva_kinstr *i);
/* No nest writes what another one, or the code between them, reads or writes. */
bool kva_sched_independent(const kva_kernel *k);
/* Nests of the kernel's body, GRID loops or single items, become one GRID loop that branches on the item's number. */
void kva_sched_share_grid(kva_kernel *k, uint32_t n, kva_kinstr **nests);

/* ---- schedule.c, schedule_loops.c -------------------------------------------------------------------------------- */

/* Some loop of k has a kind that only schedules give. */
bool kva_sched_is_scheduled(const kva_kernel *k);
/* UNROLL for short extents and small bodies, else SERIAL. */
kva_kloop_kind kva_sched_sequential_kind(const kva_kloop *l);
/* Some loop below r is still PARALLEL. */
bool kva_sched_has_map(const kva_kregion *r);
/* Moves all instructions of `from` to the end of `to`. */
void kva_sched_move(kva_kregion *from, kva_kregion *to);

#endif
