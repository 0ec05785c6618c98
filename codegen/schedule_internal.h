/* Shared by the schedule_*.c files. */
#ifndef KVA_CODEGEN_SCHEDULE_INTERNAL_H
#define KVA_CODEGEN_SCHEDULE_INTERNAL_H

#include "codegen/codegen.h"

/* Minimum cycles of a work item, about 4 us. Handing an item to another thread costs a tenth of that. */
enum { KVA_ITEM_CYCLES = 16384 };

/* ---- schedule_cost.c: estimates ---------------------------------------------------------------------------------- */

/* An estimate of an extent; shape symbols count as 64. */
double kva_cost_extent(const kva_expr *extent);
/* Cycles of one execution of r; a VECTOR loop's body counts once for every `lanes` iterations. */
double kva_cost_region(const kva_kregion *r, int lanes);

/* How the accesses in a loop's body move with its variable, weighted by the loops between. */
typedef struct kva_strides {
  double unit, near, strided; /* weight of stride 1, of loads up to KVA_NEAR_STRIDE or by as many lanes, and of other
                                 strides except 0; stores count double */
  bool legal; /* iterations may run as lanes: their order is free, no inner extent depends on the variable */
} kva_strides;
kva_strides kva_strides_of(kva_kernel *k, const kva_kloop *l);

/* ---- schedule_loops.c: rewriting --------------------------------------------------------------------------------- */

/* The only instruction of l's body if that is a loop of l's kind; else NULL. */
kva_kloop *kva_sched_inner(const kva_kloop *l);
/* The order of accesses to buf matters: buf is read and written, or several instructions store to it. */
bool kva_sched_is_ordered(const kva_kernel *k, const kva_kbuf *buf);
/* The PARALLEL loop in l's body, if everything else there is before it, pure and free of loops, and its extent uses
 * none of it; else NULL. */
kva_kloop *kva_sched_sole_map(const kva_kernel *k, const kva_kloop *l);
/* Moves the code before that loop into it, so that the nest is perfect. */
void kva_sched_sink(kva_kloop *l);
/* Removes loops of extent 0, by which later index arithmetic could divide. */
void kva_sched_drop_empty(kva_kregion *r);
/* Merges perfectly nested PARALLEL loops below r wherever no index needs a division. */
void kva_sched_collapse(kva_kernel *k, kva_kregion *r);
/* Replaces the variables of two loops by f = outer * extent(inner) + inner in all indices in r. If an index needs a
 * division for that: with `divide`, all of them are divided; without, nothing changes and the result is false. */
bool kva_sched_rejoin(kva_kernel *k, kva_kregion *r, kva_kloop *outer, kva_kloop *inner, const kva_expr *f,
                      bool divide);
/* Splits l into `PARALLEL b < ceil(n / size) { l' < min(size, n - b*size) }`; returns the loop over b. */
kva_kloop *kva_sched_split(kva_kernel *k, kva_kloop *l, int64_t size);
/* Makes the nest of PARALLEL loops rows[0..n) one GRID loop whose items are `per_item` rows each. `order` is a
 * permutation of rows; its last loop varies fastest. */
kva_kloop *kva_sched_grid(kva_kernel *k, uint32_t n, kva_kloop *const *rows, kva_kloop *const *order,
                          const kva_expr *per_item);
/* Iterations of the whole nest. */
const kva_expr *kva_sched_count(kva_kernel *k, uint32_t n, kva_kloop *const *rows);
/* ---- schedule_reuse.c: rows kept for a second use ---------------------------------------------------------------- */

/* Keeps the results of costly functions that two VECTOR loops over one row both compute in a local row. */
void kva_sched_reuse_rows(kva_kernel *k);

/* ---- schedule_fold.c: copies of code in which more is known ------------------------------------------------------ */

/* Whether i is x < y or x <= y of index expressions. */
bool kva_sched_compares(kva_kernel *k, const kva_kinstr *i, const kva_expr **out_x, const kva_expr **out_y);
/* i becomes the integer or truth value v, or 0 of its type. */
void kva_sched_become_constant(kva_kinstr *i, int64_t v);
/* A load whose predicate is known is one without, or 0. */
void kva_sched_fold_predicate(kva_kinstr *i);
/* The operand that i, a select or a conjunction, equals by a known condition; NULL: none. */
kva_kinstr *kva_sched_same_operand(const kva_kinstr *i);

/* ---- schedule_pieces.c: loops over joined tensors ---------------------------------------------------------------- */

/* Cuts VECTOR loops where comparisons of their variable with constants change, into pieces of a vector or more. */
void kva_sched_pieces(kva_kernel *k, const kva_target *target);
/* Cuts a loop around the innermost one of the kernel's only nest likewise, if it has many pieces. */
bool kva_sched_cut_rows(kva_kernel *k);
/* Those that a loop would be cut into, at least 1. lanes: of f32. */
uint32_t kva_sched_count_pieces(kva_kernel *k, const kva_kloop *l, int64_t lanes);

/* ---- schedule_nests.c: several nests ----------------------------------------------------------------------------- */

/* Appends an instruction with the value of x to r. */
kva_kinstr *kva_sched_index_value(kva_kernel *k, kva_kregion *r, const kva_expr *x);
bool kva_sched_has_effects(kva_kinstr *i);
bool kva_sched_is_grid(const kva_kinstr *i);
/* No nest writes a buffer that another nest, or the code between them, reads or writes. */
bool kva_sched_independent(const kva_kernel *k);
/* Merges nests of the kernel's body, GRID loops or single items, into one GRID loop that branches on the item's
 * number. */
void kva_sched_share_grid(kva_kernel *k, uint32_t n, kva_kinstr **nests);

/* Kinds for every PARALLEL loop: grid, lanes, unrolling. Nests that depend on each other run in one work item. */
void kva_sched_cpu_nests(kva_kernel *k, const kva_target *target);

/* ---- schedule.c, schedule_loops.c -------------------------------------------------------------------------------- */

/* Some loop of k has a kind that only a schedule assigns. */
bool kva_sched_is_scheduled(const kva_kernel *k);
/* UNROLL for short extents with small bodies, else SERIAL. */
kva_kloop_kind kva_sched_sequential_kind(const kva_kloop *l);
/* Some loop below r is still PARALLEL. */
bool kva_sched_has_map(const kva_kregion *r);
/* Moves all instructions of `from` to the end of `to`. */
void kva_sched_move(kva_kregion *from, kva_kregion *to);

#endif
