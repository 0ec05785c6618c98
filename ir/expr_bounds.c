/* Constant bounds by interval arithmetic. INT64_MIN below and INT64_MAX above mean infinity. A bound that does not fit
 * an int64_t is widened to infinity, or clamped where that weakens it, so bounds hold for mathematical integers. */
#include "ir/expr_internal.h"

typedef struct interval {
  int64_t lo, hi;
} interval;

static const interval everything = {INT64_MIN, INT64_MAX};

static interval bounds_of(const kva_expr *e) {
  return (interval){kva_expr_lo(e), kva_expr_hi(e)};
}

static int64_t clamp(__int128 v) {
  return v < INT64_MIN ? INT64_MIN : v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

static bool infinite(int64_t v) {
  return v == INT64_MIN || v == INT64_MAX;
}

static interval add(interval x, interval y) {
  interval r = {INT64_MIN, INT64_MAX};
  if (x.lo != INT64_MIN && y.lo != INT64_MIN) r.lo = clamp((__int128)x.lo + y.lo);
  if (x.hi != INT64_MAX && y.hi != INT64_MAX) r.hi = clamp((__int128)x.hi + y.hi);
  return r;
}

/* Product of two ends; infinity times 0 is 0. */
static int64_t end_product(int64_t x, int64_t y) {
  if (!x || !y) return 0;
  if (infinite(x) || infinite(y)) return (x < 0) == (y < 0) ? INT64_MAX : INT64_MIN;
  return clamp((__int128)x * y);
}

static interval mul(interval x, interval y) {
  int64_t p[4] = {end_product(x.lo, y.lo), end_product(x.lo, y.hi), end_product(x.hi, y.lo), end_product(x.hi, y.hi)};
  interval r = {p[0], p[0]};
  for (int i = 1; i < 4; i++) {
    if (p[i] < r.lo) r.lo = p[i];
    if (p[i] > r.hi) r.hi = p[i];
  }
  return r;
}

static interval sum_bounds(const kva_expr *e) {
  interval r = {e->constant, e->constant};
  for (uint32_t i = 0; i < e->n_terms; i++) {
    const kva_expr_term *t = &e->terms[i];
    interval product = {1, 1};
    for (uint32_t f = 0; f < t->n_factors; f++) {
      bool square = f + 1 < t->n_factors && t->factors[f] == t->factors[f + 1];
      interval x = bounds_of(t->factors[f]), power = square ? mul(x, bounds_of(t->factors[f + 1])) : x;
      if (square && power.lo < 0) power.lo = 0;
      product = mul(product, power);
      f += square;
    }
    r = add(r, mul(product, (interval){t->coefficient, t->coefficient}));
  }
  return r;
}

static interval symbol_bounds(const kva_expr *e) {
  interval r = {e->lo, INT64_MAX};
  if (!e->extent) return r;
  int64_t end = kva_expr_hi(e->extent);
  if (end != INT64_MAX && end != INT64_MIN) r.hi = end - 1;
  if (r.hi < r.lo) r.hi = r.lo; /* an empty range: nothing is ever evaluated there */
  return r;
}

/* floor(x / d) for d >= 1; INT64_MAX means unbounded d. */
static int64_t end_quotient(int64_t x, int64_t d) {
  return d == INT64_MAX ? (x < 0 ? -1 : 0) : kva_floor_div(x, d);
}

static interval div_bounds(const kva_expr *e) {
  interval x = bounds_of(e->a), d = bounds_of(e->b);
  if (d.lo < 0) return everything;
  if (d.lo == 0) d.lo = 1; /* a divisor is not 0 */
  if (d.hi < d.lo) d.hi = d.lo;
  interval r = everything;
  if (x.lo != INT64_MIN) r.lo = end_quotient(x.lo, x.lo < 0 ? d.lo : d.hi);
  if (x.hi != INT64_MAX) r.hi = end_quotient(x.hi, x.hi < 0 ? d.hi : d.lo);
  return r;
}

static interval mod_bounds(const kva_expr *e) {
  interval x = bounds_of(e->a), d = bounds_of(e->b);
  if (d.lo < 0) return everything;
  interval r = {0, d.hi == INT64_MAX ? INT64_MAX : d.hi - 1};
  if (x.lo >= 0 && x.hi < r.hi) r.hi = x.hi;
  if (r.hi < 0) r.hi = 0;
  return r;
}

static interval min_bounds(interval x, interval y) {
  return (interval){x.lo < y.lo ? x.lo : y.lo, x.hi < y.hi ? x.hi : y.hi};
}

static interval max_bounds(interval x, interval y) {
  return (interval){x.lo > y.lo ? x.lo : y.lo, x.hi > y.hi ? x.hi : y.hi};
}

static interval compute(const kva_expr *e) {
  switch (e->kind) {
  case KVA_EXPR_SUM: return sum_bounds(e);
  case KVA_EXPR_SYMBOL: return symbol_bounds(e);
  case KVA_EXPR_DIV: return div_bounds(e);
  case KVA_EXPR_MOD: return mod_bounds(e);
  case KVA_EXPR_MIN: return min_bounds(bounds_of(e->a), bounds_of(e->b));
  case KVA_EXPR_MAX: return max_bounds(bounds_of(e->a), bounds_of(e->b));
  case KVA_EXPR_OVERFLOW: break;
  }
  return everything;
}

void kva_expr_bounds(const kva_expr *e, int64_t *out_lo, int64_t *out_hi) {
  interval r = compute(e);
  KVA_ASSERT(r.lo <= r.hi);
  *out_lo = r.lo;
  *out_hi = r.hi;
}
