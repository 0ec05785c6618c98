/* Shared by attention, its gradients and attention_cached; attention.c defines them. */
#ifndef KVA_OPS_ATTENTION_H
#define KVA_OPS_ATTENTION_H

#include "ops/build.h"

/* Operands: the first five belong to all operators, the others to attention_cached or to the gradients. */
enum {
  KVA_ATTENTION_Q,
  KVA_ATTENTION_K,
  KVA_ATTENTION_V,
  KVA_ATTENTION_MASK,
  KVA_ATTENTION_SLOPES,
  KVA_ATTENTION_POSITION, /* of attention_cached, which has no gradient */
  KVA_ATTENTION_DELTA = KVA_ATTENTION_POSITION,
  KVA_ATTENTION_LSE,
  KVA_ATTENTION_PAGES = KVA_ATTENTION_LSE, /* of attention_cached */
  KVA_ATTENTION_DY,
};

typedef struct kva_attention {
  const kva_node *n;
  kva_attention_attrs attrs; /* scale resolved: never 0 */
  kva_dim B, H, H_kv, T, S, group, offset;
  int64_t D, D_v;
  kva_dim page_rows; /* of a cache in pages; else NULL */
} kva_attention;

/* Reads a checked node of any of these operators. `c` receives the expressions group and offset. */
kva_attention kva_attention_get(const kva_node *n, kva_expr_ctx *c);
/* Checks the operands that all of them have. */
KVA_MUST_USE kva_status kva_attention_check(kva_module *m, const kva_node *n);
/* Inference of the gradients: also checks delta, lse, dy. */
KVA_MUST_USE kva_status kva_attention_grad_check(kva_module *m, const kva_node *n);
/* Rows of dq that belong to a head of keys: those of all heads of its group. -1: not known, or more than the caches of
 * a core keep while attention_grad walks the keys. */
int64_t kva_attention_grad_rows(const kva_type *q, const kva_type *k);

/* Floating-point operations of `products` matrix products over all pairs of query and key; half of them for a causal
 * mask. */
double kva_attention_products(const kva_node *n, const kva_sizes *s, double products);

/* ---- reference --------------------------------------------------------------------------------------------------- */

typedef struct kva_attention_oracle {
  int64_t B, H, H_kv, T, S, D, D_v, offset;
  kva_attention_attrs attrs;
  const kva_ref_tensor *q, *k, *v, *mask, *slopes, *position, *pages, *delta, *lse, *dy; /* NULL: absent */
} kva_attention_oracle;

/* Results of attention and of attention_cached, for which lse is NULL. */
KVA_MUST_USE kva_status kva_attention_values(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                             kva_ref_tensor *y, kva_ref_tensor *lse);
KVA_MUST_USE kva_status kva_attention_oracle_get(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                                 kva_attention_oracle *out);
/* Query row (b, h, t) and key s. */
typedef struct kva_attention_at {
  int64_t b, h, t, s;
} kva_attention_at;
/* p: softmax probability; ds = dL/d(q.k), from lse, delta and dy. */
typedef struct kva_attention_slope {
  double p, ds;
} kva_attention_slope;
kva_attention_slope kva_attention_grad_at(const kva_attention_oracle *a, kva_attention_at at);
/* First element of a row of q/dq, k/dk, v/dv, y/dy. */
int64_t kva_attention_q_row(const kva_attention_oracle *a, kva_attention_at at);
int64_t kva_attention_k_row(const kva_attention_oracle *a, kva_attention_at at);
int64_t kva_attention_v_row(const kva_attention_oracle *a, kva_attention_at at);
int64_t kva_attention_y_row(const kva_attention_oracle *a, kva_attention_at at);

#endif
