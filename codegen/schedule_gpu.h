/* Shared by the schedule_gpu*.c files. */
#ifndef KVA_CODEGEN_SCHEDULE_GPU_H
#define KVA_CODEGEN_SCHEDULE_GPU_H

#include "codegen/schedule_internal.h"

enum { KVA_WARP_ROW = 512 }; /* elements of a row of unknown length that a warp takes; longer ones are a block's */

/* ---- schedule_gpu_subgroup.c ------------------------------------------------------------------------------------- */

/* Everything below r is one thread's. */
void kva_sched_serialize(kva_kregion *r);
/* i becomes the work of the subgroup's first thread; returns what stands for it. */
kva_kinstr *kva_sched_wrap(kva_kernel *k, kva_kinstr *i);
/* The same for the whole kernel. */
void kva_sched_wrap_all(kva_kernel *k);
/* Every access in l's body stays, or moves by one from iteration to iteration; some do. */
bool kva_sched_at_unit_stride(kva_kernel *k, const kva_kloop *l);
/* Does the order of accesses to buf matter: is it read and written, or stored to in several places? */
bool kva_sched_is_ordered(const kva_kernel *k, const kva_kbuf *buf);
/* A buffer in shared memory, for code that a schedule adds to built kernels; `name` is made unique. */
kva_kbuf *kva_sched_shared(kva_kernel *k, const char *name, kva_dtype dtype, int64_t n);
/* Most iterations that a subgroup could share in r; 0: a subgroup is no use there. */
double kva_sched_subgroup_extent(kva_kernel *k, const kva_kregion *r);
/* Makes r the code of a subgroup. */
void kva_sched_distribute(kva_kernel *k, kva_kregion *r);
/* The loop in r whose iterations are to be subgroups (kva_kloop.subgroup); NULL: there is none. */
kva_kloop *kva_sched_subgroups(const kva_kregion *r);

/* ---- schedule_gpu_width.c, schedule_gpu_reduce.c, schedule_gpu_columns.c, schedule_gpu_transpose.c,
 * schedule_gpu_neighbours.c ---- */

/* Consecutive iterations of l that a thread may take as lanes: as many as 16 bytes of the widest type hold, where every
 * access of its straight-line body is consecutive and aligned; else 1. */
uint32_t kva_sched_width(kva_kernel *k, const kva_kloop *l);
/* The same for a THREAD loop over rows that start anywhere, where one peel (kva_kloop.peel) aligns all accesses; 1:
 * none does. With it the order in which a row is added up depends on where the row starts, too. */
uint32_t kva_sched_width_behind(kva_kernel *k, const kva_kloop *l, const kva_expr **out_head);
/* Bytes of the widest element that r loads or stores; at least 1. */
int kva_sched_widest_element(const kva_kregion *r);
/* No extent in the nest depends on a loop around, and no value from memory stands in an index. */
bool kva_sched_is_rectangular(const kva_kernel *k, uint32_t n, kva_kloop *const *nest);

/* Directly nested reductions become one over all iterations; returns the loop that stands for l. divide: also where
 * indices then need divisions. */
kva_kloop *kva_sched_merge_reductions(kva_kernel *k, kva_kloop *l, bool divide);

/* v is the constant that `combine` (a sum or a product) starts with. */
bool kva_sched_is_neutral(const kva_kinstr *v, kva_combine combine);
/* The results of `from` become those of `to`. */
void kva_sched_retarget(kva_kernel *k, const kva_kloop *from, kva_kloop *to);

/* A loop over columns whose body is one reduction becomes, for blocks of `threads` threads, a loop over blocks of
 * columns that share the reduction; *leaf is then that loop. False: it has another form. */
bool kva_sched_columns(kva_kernel *k, kva_kloop **leaf, int64_t threads);

/* A perfect nest whose leaf stores along lines and loads across them becomes a grid of squares that blocks turn in
 * shared memory. False: it has another form. */
bool kva_sched_transpose(kva_kernel *k, uint32_t n, kva_kloop **nest);

/* A perfect nest whose body reads neighbours of its element becomes a grid of blocks of `threads` threads that each
 * take an element with its neighbours (schedule_gpu_neighbours.c). False: it has another form. */
bool kva_sched_neighbours(kva_kernel *k, uint32_t n, kva_kloop **nest, int64_t threads);

/* ---- schedule_gpu_long.c ----------------------------------------------------------------------------------------- */

/* Loops of a block over one row that is too long for its registers keep `room_bytes` more of it in shared memory. */
void kva_sched_keep_long(kva_kernel *k, int64_t room_bytes);

/* ---- schedule_gpu_stage.c ---------------------------------------------------------------------------------------- */

/* Does what loops ask for by kva_kloop.stage. */
void kva_sched_stage(kva_kernel *k);

/* ---- schedule_gpu_versions.c ------------------------------------------------------------------------------------- */

/* The versions of a nest over rows of unknown length, unlinked; returns how many there are, 0: it needs none. Just one
 * of them all has rows. */
enum { KVA_MAX_VERSIONS = 5 };
uint32_t kva_sched_versions(kva_kernel *k, kva_kloop *nest, kva_kinstr **versions);

#endif
