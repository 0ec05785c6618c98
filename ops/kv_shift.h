/* Shared by kv_shift and its two gradients: layout, boundary rules, addressing of taps. Definition: kv_shift.c. */
#ifndef KVA_OPS_KV_SHIFT_H
#define KVA_OPS_KV_SHIFT_H

#include "ops/build.h"

typedef enum kva_shift_boundary { KVA_SHIFT_ZERO, KVA_SHIFT_KEEP, KVA_SHIFT_EDGE } kva_shift_boundary;

/* Operand indices common to the three operators. */
enum { KVA_SHIFT_PAST = 2, KVA_SHIFT_SEGMENTS = 3, KVA_SHIFT_LEFT_PAD = 4 };

/* Limits of kv_shift_grads: the maximum window, since a thread keeps one sum per tap, and the rows per partial sum of
 * dw. */
enum { KVA_SHIFT_GRADS_TAPS = 4, KVA_SHIFT_GRADS_ROWS = 16 };
enum { KVA_SHIFT_GRADS_DY = 0, KVA_SHIFT_GRADS_X = 2 }; /* operands of kv_shift_grads */

/* A kv_shift node independent of its layout: x[b, t, h, d], w according to `weight_rank` (kv_shift.c). */
typedef struct kva_shift {
  const kva_node *n;
  uint32_t time, head; /* axes of x: {1, 2} or {2, 1} */
  kva_shift_boundary boundary;
  uint32_t weight_rank;
  int64_t window; /* W */
  kva_dim B, T, H, D;
} kva_shift;

/* The axis of w that indexes taps. */
static inline uint32_t kva_shift_tap_axis(uint32_t weight_rank) {
  return weight_rank == 4 ? 3 : 1;
}

/* Reads a checked node: the type of x (or of dy, which is equal), the shape of w. */
kva_shift kva_shift_get(const kva_node *n, const kva_type *x, int64_t time_axis, const char *boundary,
                        uint32_t weight_rank, const kva_dim *weight_dims);
/* Inference of all three: checks everything but results; errors about w's shape refer to operand w_operand. */
KVA_MUST_USE kva_status kva_shift_check(kva_module *m, const kva_node *n, int64_t time_axis, const char *boundary,
                                        uint32_t weight_rank, const kva_dim *weight_dims, uint32_t w_operand);
/* Reads a checked kv_shift_grads node. */
kva_shift kva_shift_grads_get(const kva_node *n);
/* Type of the state: x's with W-1 rows. */
const kva_type *kva_shift_state_type(kva_module *m, const kva_shift *s);

/* ---- reference --------------------------------------------------------------------------------------------------- */

typedef struct kva_shift_ref {
  int64_t B, T, H, D, W;
  uint32_t time, weight_rank;
  kva_shift_boundary boundary;
  const kva_ref_tensor *past, *segments, *left_pad; /* NULL: absent */
} kva_shift_ref;

/* The source of tap j of row t of sequence b. */
typedef struct kva_shift_source {
  enum { KVA_FROM_NOTHING, KVA_FROM_X, KVA_FROM_PAST } from;
  int64_t row;      /* of x or past */
  bool unit_weight; /* the row that boundary "keep" keeps: w has no part in it */
} kva_shift_source;

kva_shift_ref kva_shift_ref_get(const kva_shift *s, const kva_ref_tensor *x, const kva_ref_tensor *const *in);
kva_shift_source kva_shift_read(const kva_shift_ref *s, int64_t b, int64_t t, int64_t j);
/* Offset of (b, t, h, d) in a tensor laid out like x with `rows` rows, and of (b, t, h, j, d) in w. */
int64_t kva_shift_offset(const kva_shift_ref *s, int64_t rows, int64_t b, int64_t t, int64_t h, int64_t d);
int64_t kva_shift_weight_offset(const kva_shift_ref *s, int64_t b, int64_t t, int64_t h, int64_t j, int64_t d);

/* ---- lowering ---------------------------------------------------------------------------------------------------- */

/* Index of one element, independent of layout. */
typedef struct kva_shift_at {
  const kva_expr *b, *t, *h, *d;
} kva_shift_at;

kva_shift_at kva_shift_index(const kva_shift *s, const kva_expr *const *idx);
/* Element `at` of an operand laid out like x if cond holds (NULL: always), else 0. */
kva_kval kva_shift_operand(kva_lower *l, const kva_shift *s, uint32_t operand, kva_shift_at at, kva_kval cond);
/* The first row of sequence b after its padding. */
const kva_expr *kva_shift_start(kva_lower *l, const kva_shift *s, const kva_expr *b);
/* Whether rows t and u (0 <= t, u < T under `guard`) of sequence b belong to one document; NULL: there are no
 * documents. */
kva_kval kva_shift_same_segment(kva_lower *l, const kva_shift *s, const kva_expr *b, const kva_expr *t,
                                const kva_expr *u, kva_kval guard);
/* The value that tap j of row at.t reads from operand 0 (x) or past; 0 where there is no such row. *out_exists (may be
 * NULL): there is one; NULL: always. */
kva_kval kva_shift_tap(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *j, kva_kval *out_exists);
/* w for (at, tap j) if cond holds. */
kva_kval kva_shift_weight(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *j, kva_kval cond);
/* True at the row that boundary "keep" passes unmixed; NULL: there is none. */
kva_kval kva_shift_kept_row(kva_lower *l, const kva_shift *s, kva_shift_at at);
/* sum_{j < W} of weight * value in order of j: unrolled for common windows, else a loop. The bits depend neither on T
 * nor on the row. */
typedef struct kva_shift_product {
  kva_kval weight, value;
} kva_shift_product;
typedef kva_shift_product (*kva_shift_term)(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *j,
                                            void *user);
kva_kval kva_shift_sum(kva_lower *l, const kva_shift *s, kva_shift_at at, kva_shift_term term, void *user);

#endif
