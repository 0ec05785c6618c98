/* Shared by the schedule_gpu*.c files. */
#ifndef KVA_CODEGEN_SCHEDULE_GPU_H
#define KVA_CODEGEN_SCHEDULE_GPU_H

#include "codegen/schedule_internal.h"

enum { KVA_WARP_ROW = 512 }; /* a warp takes rows of unknown length up to this many elements, a block longer ones */

/* ---- schedule_gpu.c: passes of the pipeline ---------------------------------------------------------------------- */

/* k->threads: those that the subgroups of its loops need, else the usual number. */
void kva_sched_gpu_threads(kva_kernel *k);
/* A kernel that arrives with a CPU's schedule: a thread for every item. */
void kva_sched_gpu_items(kva_kernel *k);
/* What stands between two PARALLEL loops of a nest moves into the inner one. */
void kva_sched_gpu_sink(kva_kernel *k);
/* Independent nests share one grid; others are one block's. */
void kva_sched_gpu_blocks(kva_kernel *k, const kva_target *target);
/* In large blocks, rows beyond registers (schedule_gpu_long.c). */
void kva_sched_gpu_long(kva_kernel *k, const kva_target *target);
/* Blocks that a multiprocessor must be able to hold. */
void kva_sched_gpu_registers(kva_kernel *k, const kva_target *target);

/* ---- schedule_gpu_subgroup.c ------------------------------------------------------------------------------------- */

/* Makes all loops below r sequential: one thread runs them. */
void kva_sched_serialize(kva_kregion *r);
/* Moves i into a loop that only the first thread of the subgroup runs; returns that loop's instruction. */
kva_kinstr *kva_sched_wrap(kva_kernel *k, kva_kinstr *i);
/* The same for the whole kernel. */
void kva_sched_wrap_all(kva_kernel *k);
/* Every access in l's body has stride 0 or 1 in l's variable, and at least one has stride 1. */
bool kva_sched_at_unit_stride(kva_kernel *k, const kva_kloop *l);
/* Creates a buffer in shared memory for code that a schedule adds to a built kernel; makes `name` unique. */
kva_kbuf *kva_sched_shared(kva_kernel *k, const char *name, kva_dtype dtype, int64_t n);
/* The largest number of iterations in r that a subgroup could share; 0: r does not suit a subgroup. */
double kva_sched_subgroup_extent(kva_kernel *k, const kva_kregion *r);
/* Distributes the work in r over the threads of a subgroup. */
void kva_sched_distribute(kva_kernel *k, kva_kregion *r);
/* The loop in r whose iterations are meant for subgroups (kva_kloop.subgroup); NULL: none. */
kva_kloop *kva_sched_subgroups(const kva_kregion *r);

/* ---- schedule_gpu_width.c, schedule_gpu_reduce.c, schedule_gpu_columns.c, schedule_gpu_transpose.c,
 * schedule_gpu_neighbours.c ---- */

/* The number of consecutive iterations of l that a thread may take as lanes: as many as fit 16 bytes of the widest
 * type, provided every access of the straight-line body is consecutive and aligned; else 1. */
uint32_t kva_sched_width(kva_kernel *k, const kva_kloop *l);
/* The same for a THREAD loop over rows that start at any element, where one peel (kva_kloop.peel) aligns all accesses;
 * 1: no such peel exists. With a peel, the order of a row's sum also depends on where the row starts. */
uint32_t kva_sched_width_behind(kva_kernel *k, const kva_kloop *l, const kva_expr **out_peel);
/* Bytes of the widest element that r loads or stores; at least 1. */
int kva_sched_widest_element(const kva_kregion *r);
/* No extent in the nest depends on a variable of the nest, and no index depends on a value from memory. */
bool kva_sched_is_rectangular(const kva_kernel *k, uint32_t n, kva_kloop *const *nest);

/* Merges directly nested reductions into one over all iterations; returns the loop that replaces l. divide: merge even
 * if indices then need divisions. */
kva_kloop *kva_sched_merge_reductions(kva_kernel *k, kva_kloop *l, bool divide);

/* v is the neutral element of `combine` (a sum or a product). */
bool kva_sched_is_neutral(const kva_kinstr *v, kva_combine combine);
/* Makes all uses of results of `from` use those of `to`. */
void kva_sched_retarget(kva_kernel *k, const kva_kloop *from, kva_kloop *to);

/* Splits a loop over columns whose body is one reduction into blocks of columns; the `threads` threads of a block share
 * each reduction. On success *leaf is the loop over blocks. False: the loop does not have this form. */
bool kva_sched_columns(kva_kernel *k, kva_kloop **leaf, int64_t threads);

/* Tiles a perfect nest whose leaf stores with stride 1 and loads with a larger stride; each block transposes a square
 * tile in shared memory. False: the nest does not have this form. */
bool kva_sched_transpose(kva_kernel *k, uint32_t n, kva_kloop **nest);

/* Makes a perfect nest whose body reads neighbours of its element a grid of blocks of `threads` threads, each of which
 * takes an element together with its neighbours (schedule_gpu_neighbours.c). False: the nest does not have this
 * form. */
bool kva_sched_neighbours(kva_kernel *k, uint32_t n, kva_kloop **nest, int64_t threads);

/* ---- schedule_gpu_long.c ----------------------------------------------------------------------------------------- */

/* For rows that exceed a block's registers: loops of one block over the same row keep more of it in shared memory, and
 * blocks share those that exceed that, too. */
void kva_sched_keep_long(kva_kernel *k, const kva_target *target);

/* ---- schedule_gpu_stage.c ---------------------------------------------------------------------------------------- */

/* Stages loads in shared memory for the loops that ask for it (kva_kloop.stage). */
void kva_sched_stage(kva_kernel *k);

/* ---- schedule_gpu_versions.c ------------------------------------------------------------------------------------- */

/* Writes the versions of a nest over rows of unknown length, unlinked; returns their number, 0: the nest needs none.
 * For every length exactly one version has rows. */
enum { KVA_MAX_VERSIONS = 5 };
uint32_t kva_sched_versions(kva_kernel *k, kva_kloop *nest, kva_kinstr **versions);

#endif
