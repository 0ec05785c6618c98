/* Tensors, graphs and shifts for tests that compute with the reference evaluator. Tensors belong to the test: fx_free,
 * its teardown, frees them all. Anything that goes wrong fails the test. */
#ifndef KVA_TESTS_OPS_FIXTURE_H
#define KVA_TESTS_OPS_FIXTURE_H

#include "ops/build.h"

enum { FX_B = 2, FX_H = 3, FX_D = 4 }; /* batch, heads, channels of the shifts under test */
extern const char *const fx_boundaries[3];

kva_ref_tensor *fx_keep(kva_ref_tensor *w);
int fx_free(void **state);
kva_ref_tensor *fx_tensor(kva_dtype t, uint32_t rank, const int64_t *dims); /* zeros */
/* Doubles uniform in (-1, 1). */
kva_ref_tensor *fx_random(uint64_t seed, uint32_t rank, const int64_t *dims);
#define FX_RANDOM(seed, ...) fx_random(seed, sizeof((int64_t[]){__VA_ARGS__}) / 8, (int64_t[]){__VA_ARGS__})
kva_ref_tensor *fx_integers(uint32_t rank, const int64_t *dims, const int64_t *v);
kva_ref_tensor *fx_floats(uint32_t rank, const int64_t *dims, const double *v);
/* Rows [from, from + count) along an axis. */
kva_ref_tensor *fx_rows(const kva_ref_tensor *x, uint32_t axis, int64_t from, int64_t count);

/* cmocka's own compares in float. */
void fx_near(double x, double y, double tolerance);
void fx_close(const kva_ref_tensor *x, const kva_ref_tensor *y, double tolerance);

/* A function under construction whose inputs have values. */
typedef struct fx_graph {
  kva_diag *diag;
  kva_module *m;
  kva_function *f;
  kva_builder b;
  const kva_ref_tensor *inputs[16];
  uint32_t n;
} fx_graph;
fx_graph fx_graph_create(void);
void fx_graph_destroy(fx_graph *g);
/* A new input; NULL stays NULL: an operand left out. */
kva_value *fx_given(fx_graph *g, const kva_ref_tensor *w);
/* A new input without a value, of floats. */
kva_value *fx_input(fx_graph *g, const char *name, uint32_t rank, const kva_dim *dims);
/* Ends the function, which must be valid then. */
void fx_return(fx_graph *g, uint32_t n, kva_value *const *values);
/* Evaluates values and destroys the graph. */
void fx_run(fx_graph *g, uint32_t n, kva_value *const *values, kva_ref_tensor **out);
kva_ref_tensor *fx_run1(fx_graph *g, kva_value *v);

typedef struct fx_shift_operands {
  const kva_ref_tensor *x, *w, *past, *segments, *left_pad;
} fx_shift_operands;
typedef struct fx_shifted {
  kva_ref_tensor *y, *state;
} fx_shifted;
kva_node *fx_shift_node(fx_graph *g, const kva_kv_shift_attrs *a, const fx_shift_operands *o);
fx_shifted fx_shift(const char *boundary, int64_t time_axis, fx_shift_operands o);
/* x of `count` rows for a time axis; weights [H, W] that are equal for all heads. */
kva_ref_tensor *fx_random_rows(uint64_t seed, int64_t axis, int64_t count);
kva_ref_tensor *fx_same_for_heads(int64_t W, const double *taps);

#endif
