/* A mix of a tensor with shifted copies of itself, on its way to a kv_shift node. */
#ifndef KVA_PASSES_RAISE_KV_SHIFT_H
#define KVA_PASSES_RAISE_KV_SHIFT_H

#include "passes/raise.h"
#include "passes/raise_rows.h"

enum { KVA_MAX_TAPS = 16 };

typedef enum kva_mix_boundary { KVA_MIX_OPEN, KVA_MIX_ZERO, KVA_MIX_EDGE, KVA_MIX_STATE } kva_mix_boundary;

/* number * factor; factor NULL: the number alone. Nothing that is not `present` was added yet. */
typedef struct kva_tap_weight {
  bool present;
  double number;
  kva_value *factor;
} kva_tap_weight;

/* y[t] = sum_j w[j] x[t - j] for t in [first, T). Weights broadcast against `type`. */
typedef struct kva_mix {
  kva_builder *b;
  const kva_type *type;      /* of y: its rows are [first, T) */
  kva_value *x;              /* may be of a narrower float type than y */
  uint32_t axis;             /* of the rows */
  int64_t first;             /* 1: row 0 is x[0], unmixed, and not part of y */
  kva_mix_boundary boundary; /* OPEN: no tap has told yet */
  kva_value *past;           /* STATE: its last rows come before row 0 */
  kva_tap_weight w[KVA_MAX_TAPS];
} kva_mix;

/* True when the view shows rows [first, T) of x moved by *out_tap >= 0 rows, in line with the boundary so far, which it
 * may settle. */
bool kva_mix_tap(kva_mix *s, const kva_rows_view *view, int64_t *out_tap);
/* weight + more, weight * factor. */
kva_tap_weight kva_tap_add(kva_mix *s, kva_tap_weight weight, kva_tap_weight more);
kva_tap_weight kva_tap_scale(kva_mix *s, kva_tap_weight weight, kva_value *factor);
/* v can be (part of) a weight: it varies along heads and channels, or along everything but channels. */
bool kva_mix_is_weight(const kva_mix *s, const kva_value *v);
/* The mix as a kv_shift node, shaped like x; NULL: not worth it, or its weights fit none of kv_shift's granularities.
 * With `first`, row 0 is included. */
kva_value *kva_mix_build(kva_mix *s);
/* The same with x's axes as kv_shift wants them ([B,T,H,D] or [B,H,T,D]) and weights w that do, too. */
kva_value *kva_mix_build_node(kva_mix *s, kva_value *x, kva_value *past, kva_value *w, int64_t time_axis);

/* Windows: a stack of moved copies times weights, summed; a depthwise convolution along time. */
kva_value *kva_raise_shift_window(kva_builder *b);
kva_value *kva_raise_shift_conv(kva_builder *b);

#endif
