#include "tools/gpucheck/oracle.h"

#include <math.h>

static double load(const kva_tensor *t, int64_t i) {
  return kva_load_f64(t->dtype, t->data, i);
}

/* A sum and the size of its terms. */
typedef struct sum {
  double value, squares;
} sum;

static void add(sum *s, double term) {
  s->value += term;
  s->squares += term * term;
}

static gpu_element scaled(sum s, double factor) {
  return (gpu_element){s.value * factor, sqrt(s.squares) * fabs(factor)};
}

static gpu_element plain(double v) {
  return (gpu_element){v, fabs(v)};
}

/* ---- products: [M, K] or [B, M, K], either operand transposed ---------------------------------------------------- */

static sum product_at(const gpu_form *f, const kva_tensor *a, const kva_tensor *b, int64_t batch, int64_t m,
                      int64_t n) {
  const int64_t *da = a->dims + a->rank - 2, *db = b->dims + b->rank - 2;
  int64_t depth = da[f->transpose_a ? 0 : 1];
  int64_t at_a = a->rank > 2 ? batch * da[0] * da[1] : 0, at_b = b->rank > 2 ? batch * db[0] * db[1] : 0;
  sum s = {0};
  for (int64_t k = 0; k < depth; k++)
    add(&s, load(a, at_a + (f->transpose_a ? k * da[1] + m : m * da[1] + k)) *
                load(b, at_b + (f->transpose_b ? n * db[1] + k : k * db[1] + n)));
  return s;
}

gpu_element gpu_oracle_product(const gpu_form *f, const kva_tensor *in, int output, const int64_t *at) {
  (void)output;
  bool batched = in[0].rank > 2 || in[1].rank > 2;
  return scaled(product_at(f, &in[0], &in[1], batched ? at[0] : 0, at[batched], at[batched + 1]), 1);
}

gpu_element gpu_oracle_bias_relu(const gpu_form *f, const kva_tensor *in, int output, const int64_t *at) {
  (void)output;
  sum s = product_at(f, &in[0], &in[1], 0, at[0], at[1]);
  add(&s, load(&in[2], at[1]));
  gpu_element e = scaled(s, 1);
  e.value = fmax(e.value, 0);
  return e;
}

/* ---- attention: q, dy [B, H, T, D]; k, v [B, G, T, D] ------------------------------------------------------------ */

typedef struct rows {
  int64_t H, G, T, D;
  double scale;
} rows;

static rows rows_of(const kva_tensor *in) {
  const int64_t *q = in[0].dims;
  return (rows){q[1], in[1].dims[1], q[2], q[3], 1 / sqrt((double)q[3])};
}

static double dot(const kva_tensor *a, int64_t i, const kva_tensor *b, int64_t j, int64_t n) {
  double s = 0;
  for (int64_t d = 0; d < n; d++) s += load(a, i + d) * load(b, j + d);
  return s;
}

static bool sees(const gpu_form *f, const kva_tensor *in, int64_t batch, int64_t t, int64_t s) {
  if (f->causal && s > t) return false;
  if (f->window && (s > t || s <= t - f->window)) return false;
  if (!f->documents) return true;
  const int32_t *document = (const int32_t *)in[3].data + batch * in[3].dims[1];
  return document[t] == document[s];
}

gpu_element gpu_oracle_attention(const gpu_form *f, const kva_tensor *in, int output, const int64_t *at) {
  (void)output;
  rows r = rows_of(in);
  int64_t q = ((at[0] * r.H + at[1]) * r.T + at[2]) * r.D;
  int64_t k = (at[0] * r.G + at[1] / (r.H / r.G)) * r.T * r.D;
  double total = 0;
  sum y = {0};
  for (int64_t s = 0; s < r.T; s++) {
    if (!sees(f, in, at[0], at[2], s)) continue;
    double p = exp(r.scale * dot(&in[0], q, &in[1], k + s * r.D, r.D));
    total += p;
    add(&y, p * load(&in[2], k + s * r.D + at[3]));
  }
  return total > 0 ? scaled(y, 1 / total) : plain(0);
}

typedef struct pair {
  double p, dp; /* probability and its gradient, before delta is subtracted */
  double ds;
} pair;

/* Of query row t of head h and key row s; in: q, k, v, [documents,] delta, lse, dy. */
static pair pair_of(const gpu_form *f, const kva_tensor *in, const rows *r, int64_t b, int64_t h, int64_t t,
                    int64_t s) {
  const kva_tensor *delta = in + 3 + f->documents;
  int64_t row = (b * r->H + h) * r->T + t, key = ((b * r->G + h / (r->H / r->G)) * r->T + s) * r->D;
  if (!sees(f, in, b, t, s)) return (pair){0};
  double p = exp(r->scale * dot(&in[0], row * r->D, &in[1], key, r->D) - load(&delta[1], row));
  double dp = dot(&delta[2], row * r->D, &in[2], key, r->D);
  return (pair){p, dp, p * (dp - load(&delta[0], row))};
}

static gpu_element grad_q(const gpu_form *f, const kva_tensor *in, const rows *r, const int64_t *at) {
  int64_t keys = (at[0] * r->G + at[1] / (r->H / r->G)) * r->T;
  sum g = {0};
  for (int64_t s = 0; s < r->T; s++)
    add(&g, pair_of(f, in, r, at[0], at[1], at[2], s).ds * load(&in[1], (keys + s) * r->D + at[3]));
  return scaled(g, r->scale);
}

static gpu_element grad_kv(const gpu_form *f, const kva_tensor *in, const rows *r, bool values, const int64_t *at) {
  const kva_tensor *dy = in + 5 + f->documents;
  int64_t group = r->H / r->G;
  sum g = {0};
  for (int64_t h = at[1] * group; h < (at[1] + 1) * group; h++)
    for (int64_t t = 0; t < r->T; t++) {
      pair x = pair_of(f, in, r, at[0], h, t, at[2]);
      int64_t row = ((at[0] * r->H + h) * r->T + t) * r->D + at[3];
      add(&g, values ? x.p * load(dy, row) : x.ds * load(&in[0], row));
    }
  return scaled(g, values ? 1 : r->scale);
}

gpu_element gpu_oracle_attention_gradients(const gpu_form *f, const kva_tensor *in, int output, const int64_t *at) {
  rows r = rows_of(in);
  return output == 0 ? grad_q(f, in, &r, at) : grad_kv(f, in, &r, output == 2, at);
}

/* ---- shift and rotation ------------------------------------------------------------------------------------------ */

/* x [B, T, H, D], w [H, 2]; the row before the first is zero. */
static double shifted(const kva_tensor *x, const kva_tensor *w, int64_t b, int64_t t, int64_t h, int64_t d) {
  const int64_t *n = x->dims;
  int64_t at = ((b * n[1] + t) * n[2] + h) * n[3] + d;
  double before = t ? load(x, at - n[2] * n[3]) : 0;
  return load(w, 2 * h) * load(x, at) + load(w, 2 * h + 1) * before;
}

gpu_element gpu_oracle_shift_rope(const gpu_form *f, const kva_tensor *in, int output, const int64_t *at) {
  (void)f, (void)output;
  int64_t half = in[2].dims[1], d = at[3] % half;
  double angle = load(&in[2], at[2] * half + d);
  double a = shifted(&in[0], &in[1], at[0], at[2], at[1], d);
  double b = shifted(&in[0], &in[1], at[0], at[2], at[1], d + half);
  double v = at[3] < half ? a * cos(angle) - b * sin(angle) : b * cos(angle) + a * sin(angle);
  return (gpu_element){v, hypot(a, b)};
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static double inverse_rms(const kva_tensor *x, int64_t row) {
  int64_t n = x->dims[1];
  return 1 / sqrt(dot(x, row * n, x, row * n, n) / (double)n + 1e-5);
}

gpu_element gpu_oracle_rms_norm(const gpu_form *f, const kva_tensor *in, int output, const int64_t *at) {
  (void)f, (void)output;
  return plain(load(&in[0], at[0] * in[0].dims[1] + at[1]) * inverse_rms(&in[0], at[0]) * load(&in[1], at[1]));
}

static gpu_element norm_grad_input(const kva_tensor *x, const kva_tensor *dy, const kva_tensor *w, const int64_t *at) {
  int64_t n = x->dims[1], row = at[0] * n;
  double i = inverse_rms(x, at[0]), mean = 0;
  for (int64_t c = 0; c < n; c++) mean += load(w, c) * load(dy, row + c) * load(x, row + c) * i / (double)n;
  double s = load(w, at[1]) * load(dy, row + at[1]), shift = load(x, row + at[1]) * i * mean;
  return (gpu_element){i * (s - shift), i * hypot(s, shift)};
}

gpu_element gpu_oracle_rms_norm_gradients(const gpu_form *f, const kva_tensor *in, int output, const int64_t *at) {
  (void)f;
  if (output == 0) return norm_grad_input(&in[0], &in[1], &in[2], at);
  int64_t n = in[0].dims[1];
  sum g = {0};
  for (int64_t row = 0; row < in[0].dims[0]; row++)
    add(&g, load(&in[1], row * n + at[0]) * load(&in[0], row * n + at[0]) * inverse_rms(&in[0], row));
  return scaled(g, 1);
}

gpu_element gpu_oracle_swiglu(const gpu_form *f, const kva_tensor *in, int output, const int64_t *at) {
  (void)f, (void)output;
  int64_t i = at[0] * in[0].dims[1] + at[1];
  double g = load(&in[0], i);
  return plain(g / (1 + exp(-g)) * load(&in[1], i));
}

gpu_element gpu_oracle_softmax(const gpu_form *f, const kva_tensor *in, int output, const int64_t *at) {
  (void)f, (void)output;
  int64_t n = in[0].dims[1], row = at[0] * n;
  double total = 0;
  for (int64_t c = 0; c < n; c++) total += exp(load(&in[0], row + c));
  return plain(exp(load(&in[0], row + at[1])) / total);
}

gpu_element gpu_oracle_negation(const gpu_form *f, const kva_tensor *in, int output, const int64_t *at) {
  (void)f, (void)output;
  return plain(-load(&in[0], at[0] * in[0].dims[1] + at[1]));
}
