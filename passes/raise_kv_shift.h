/* A mix of a tensor with shifted copies of itself, from which a kv_shift node is built. */
#ifndef KVA_PASSES_RAISE_KV_SHIFT_H
#define KVA_PASSES_RAISE_KV_SHIFT_H

#include "passes/raise.h"
#include "passes/raise_rows.h"

enum { KVA_MAX_TAPS = 16 };

typedef enum kva_mix_boundary { KVA_MIX_OPEN, KVA_MIX_ZERO, KVA_MIX_EDGE, KVA_MIX_STATE } kva_mix_boundary;

/* The weight number * factor; factor NULL: number. `present` is false until something is added. */
typedef struct kva_tap_weight {
  bool present;
  double number;
  kva_value *factor;
} kva_tap_weight;

/* y[t] = sum_j w[j] x[t - j] for t in [first, T). Weights broadcast against `type`. */
typedef struct kva_mix {
  kva_builder *b;
  const kva_type *type;      /* type of y, whose rows are [first, T) */
  kva_value *x;              /* its float type may be narrower than y's */
  uint32_t axis;             /* time axis */
  int64_t first;             /* 1: row 0 is x[0], unmixed, and excluded from y */
  kva_mix_boundary boundary; /* OPEN: no tap has determined it yet */
  kva_value *past;           /* STATE: its last rows precede row 0 */
  kva_tap_weight w[KVA_MAX_TAPS];
} kva_mix;

/* Whether the view contains rows [first, T) of x moved by *out_tap >= 0 rows. The boundary must be consistent with
 * earlier taps; the first one determines it. */
bool kva_mix_tap(kva_mix *s, const kva_rows_view *view, int64_t *out_tap);
/* weight + more, weight * factor. */
kva_tap_weight kva_tap_add(kva_mix *s, kva_tap_weight weight, kva_tap_weight more);
kva_tap_weight kva_tap_scale(kva_mix *s, kva_tap_weight weight, kva_value *factor);
/* Whether v can be (part of) a weight: it varies along heads and channels only, or not along channels. */
bool kva_mix_is_weight(const kva_mix *s, const kva_value *v);
/* Builds the mix as a kv_shift node shaped like x. NULL: not profitable, or the weights have none of kv_shift's
 * granularities. With `first`, row 0 is included. */
kva_value *kva_mix_build(kva_mix *s);
/* Like kva_mix_build, for x and weights w in kv_shift's layouts ([B,T,H,D] or [B,H,T,D]). */
kva_value *kva_mix_build_node(kva_mix *s, kva_value *x, kva_value *past, kva_value *w, int64_t time_axis);

/* Windows: a weighted sum over a stack of moved copies; a depthwise convolution along time. */
kva_value *kva_raise_shift_window(kva_builder *b);
kva_value *kva_raise_shift_conv(kva_builder *b);

#endif
