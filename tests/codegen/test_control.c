/* if, loop and bind, compiled: plan, artefact and runtime together give what the reference gives, for data that take
 * both branches and other sizes every time, on the CPU and on the simulator. */
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

typedef struct control_case {
  const char *name, *text;
} control_case;

/* Elements of x that are not 0, and where they lie: cumsum gives places, a scatter puts indices there. */
#define NONZERO                                                                   \
  "  zero = kv.constant <value = float {0.0}> ()\n"                               \
  "  is = kv.logical_not (kv.equal (x, zero))\n"                                  \
  "  ones = kv.cast <to = int64> (is)\n"                                          \
  "  count = kv.reduce_sum <axes = [0], keepdims = false> (ones)\n"               \
  "  kv.bind <symbol = K, bound = N> (count)\n"                                   \
  "  ends = kv.cumsum <axis = 0> (ones)\n"                                        \
  "  one = kv.constant <value = int64 {1}> ()\n"                                  \
  "  last = kv.dims <values = [N], scalar = true> ()\n"                           \
  "  at = kv.where (is, kv.sub (ends, one), last)\n"                              \
  "  room = kv.expand <shape = [N + 1]> (kv.constant <value = int64 {0}> ())\n"   \
  "  all = kv.scatter_elements <axis = 0> (room, at, kv.iota <shape = [N]> ())\n" \
  "  places = kv.slice <starts = [0], shape = [K]> (all)\n"

static const control_case cases[] = {
    {"nonzero", "main (float[N] x, int64 n) => (int64[K] places, float[K] values)\n{\n" NONZERO
                "  values = kv.gather <axis = 0> (x, places)\n"
                "  return (places, values)\n}\n"},
    {"used twice",
     "main (float[N] x, int64 n) => (float[K, K] y, float z)\n{\n" NONZERO "  v = kv.gather <axis = 0> (x, places)\n"
     "  a = kv.reshape <shape = [K, 1]> (v)\n"
     "  b = kv.reshape <shape = [1, K]> (kv.cumsum <axis = 0> (v))\n"
     "  y = kv.mul (a, b)\n"
     "  z = kv.reduce_sum <axes = [0, 1], keepdims = false> (y)\n"
     "  return (y, z)\n}\n"},
    {"sum over processes", "main (float[N] x, int64 n) => (float[N] y)\n{\n"
                           "  s = kv.all_reduce (kv.add (x, x))\n"
                           "  y = kv.mul (s, kv.all_reduce (x))\n"
                           "  return (y)\n}\n"},
    {"branches", "main (float[N] x, int64 n) => (float[M] y, float[N] w)\n{\n"
                 "  c = kv.less (kv.constant <value = int64 {2}> (), n)\n"
                 "  r, w = kv.if <binds = M> (c, x) { (float[N] a) => (float[N] b, float[N] w)\n"
                 "    b = kv.cumsum <axis = 0> (a)\n"
                 "    w = kv.exp (a)\n"
                 "    return (b, w)\n"
                 "  } { (float[N] a) => (float[2] b, float[N] w)\n"
                 "    s = kv.cumsum <axis = 0> (a)\n"
                 "    b = kv.slice <starts = [0], shape = [2]> (s)\n"
                 "    return (b, a)\n"
                 "  }\n"
                 "  y = kv.neg (r)\n"
                 "  return (y, w)\n}\n"},
    {"counted", "main (float[N] x, int64 n) => (float total, float[S, N] rows)\n{\n"
                "  zero = kv.constant <value = float {0.0}> ()\n"
                "  total, rows = kv.loop <carried = 1, binds = S> (n, , zero, x, n) {\n"
                "   (int64 i, float acc, float[N] v, int64 unused) => (bool go, float next, float[N] row)\n"
                "    go = kv.constant <value = bool {false}> ()\n"
                "    row = kv.mul (v, kv.cast <to = float> (i))\n"
                "    next = kv.add (acc, kv.reduce_sum <axes = [0], keepdims = false> (row))\n"
                "    return (go, next, row)\n"
                "  }\n"
                "  return (total, rows)\n}\n"},
    {"condition", "main (float[N] x, int64 n) => (float[N] y, int64 steps)\n{\n"
                  "  one = kv.constant <value = int64 {1}> ()\n"
                  "  start = kv.constant <value = int64 {0}> ()\n"
                  "  c = kv.less (start, n)\n"
                  "  y, steps = kv.loop <carried = 2> (, c, x, start) {\n"
                  "   (int64 i, float[N] v, int64 k) => (bool go, float[N] w, int64 next)\n"
                  "    w = kv.mul (v, kv.constant <value = float {2.0}> ())\n"
                  "    next = kv.add (k, kv.constant <value = int64 {1}> ())\n"
                  "    m = kv.reduce_max <axes = [0], keepdims = false> (w)\n"
                  "    go = kv.less (m, kv.constant <value = float {100.0}> ())\n"
                  "    return (go, w, next)\n"
                  "  }\n"
                  "  return (y, steps)\n}\n"},
    {"nested", "main (float[N] x, int64 n) => (float[N] y, float[S] sizes)\n{\n"
               "  y, sizes = kv.loop <carried = 1, binds = S> (n, , x) {\n"
               "   (int64 i, float[N] x) => (bool go, float[N] next, float size)\n"
               "    go = kv.constant <value = bool {true}> ()\n" NONZERO "    v = kv.gather <axis = 0> (x, places)\n"
               "    size = kv.reduce_sum <axes = [0], keepdims = false> (v)\n"
               "    odd = kv.equal (kv.mod (i, kv.constant <value = int64 {2}> ()), one)\n"
               "    next = kv.if (odd, x) { (float[N] a) => (float[N] b)\n"
               "      b = kv.add (a, a)\n"
               "      return (b)\n"
               "    } { (float[N] a) => (float[N] b)\n"
               "      b = kv.neg (a)\n"
               "      return (b)\n"
               "    }\n"
               "    return (go, next, size)\n"
               "  }\n"
               "  return (y, sizes)\n}\n"},
    {"state", "state float[4] \"s\" : buffer ~ zeros\n"
              "main (float[N] x, int64 n) => (float z)\n{\n"
              "  s = kv.state_read <state = \"s\"> ()\n"
              "  c = kv.less (kv.constant <value = int64 {2}> (), n)\n"
              "  t = kv.if (c, s) { (float[4] a) => (float[4] b)\n"
              "    b = kv.cumsum <axis = 0> (kv.add (a, kv.constant <value = float {1.0}> ()))\n"
              "    return (b)\n"
              "  } { (float[4] a) => (float[4] a)\n"
              "    return (a)\n"
              "  }\n"
              "  kv.state_write <state = \"s\"> (t)\n"
              "  z = kv.reduce_sum <axes = [0], keepdims = false> (t)\n"
              "  return (z)\n}\n"},
};

static kva_module *load(const control_case *c, kva_diag *diag) {
  kva_module *m = NULL;
  if (kva_load_text(c->text, c->name, &(kva_load_options){0}, diag, &m) == KVA_OK) return m;
  kva_diag_print(diag, stderr);
  fail_msg("%s does not load", c->name);
  return NULL;
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */

typedef struct inputs {
  float x[16];
  int64_t size, n;
} inputs;

static void make_inputs(int round, inputs *in) {
  *in = (inputs){.size = 3 + round * 5 % 11, .n = round * 3 % 5};
  for (int64_t i = 0; i < in->size; i++) in->x[i] = (float)((i * 7 + round * 3) % 4);
}

static kva_ref_tensor *state_of(void *user, kva_state *s) {
  (void)s;
  return user;
}

static void run_reference(kva_module *m, const inputs *in, kva_ref_tensor *state, kva_ref_tensor **out) {
  kva_ref_tensor *x = kva_ref_tensor_from_data(KVA_F32, 1, &in->size, in->x);
  kva_ref_tensor *n = kva_ref_tensor_from_data(KVA_I64, 0, NULL, &in->n);
  const kva_ref_tensor *const args[] = {x, n};
  kva_diag *diag = kva_diag_create();
  if (kva_ref_run(m, m->functions.data[0], args, out, state_of, state, NULL, NULL, diag)) {
    kva_diag_print(diag, stderr);
    fail_msg("the reference fails");
  }
  kva_diag_destroy(diag);
  kva_ref_tensor_free(x);
  kva_ref_tensor_free(n);
}

static void compare(const char *name, const kva_ref_tensor *want, const kva_tensor *found) {
  kva_ref_tensor *w = kva_ref_tensor_from_data(found->dtype, (uint32_t)found->rank, found->dims, found->data);
  bool same = w->rank == want->rank && !memcmp(w->dims, want->dims, w->rank * sizeof *w->dims);
  for (int64_t i = 0; same && i < want->n; i++) {
    double a = kva_ref_tensor_get(want, i), b = kva_ref_tensor_get(w, i), size = a < 0 ? -a : a;
    same = a - b <= 1e-5 * (1 + size) && b - a <= 1e-5 * (1 + size);
  }
  if (!same) fail_msg("%s: compiled code differs from the reference", name);
  kva_ref_tensor_free(w);
}

static void check_rounds(const control_case *c, kva_session *s) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(c, diag);
  static const int64_t four = 4;
  kva_ref_tensor *state = kva_ref_tensor_create(KVA_F32, 1, &four), *want[4];
  uint32_t n_outputs = kva_graph_output_count(m->functions.data[0]->graph);
  for (int round = 0; round < 9; round++) {
    inputs in;
    make_inputs(round, &in);
    run_reference(m, &in, state, want);
    const kva_tensor args[] = {{.dtype = KVA_F32, .rank = 1, .dims = {in.size}, .data = in.x},
                               {.dtype = KVA_I64, .data = &in.n}};
    kva_tensor out[4] = {{.data = NULL}};
    if (kva_session_run(s, 0, args, out)) fail_msg("%s: %s", c->name, kva_session_error(s));
    for (uint32_t i = 0; i < n_outputs; i++) {
      compare(c->name, want[i], &out[i]);
      kva_ref_tensor_free(want[i]);
    }
  }
  kva_ref_tensor_free(state);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void check(const control_case *c, const char *arch, const char *device) {
  kva_diag *diag = kva_diag_create();
  kva_compiled *compiled;
  kva_session *s = NULL;
  const kva_compile_options options = {.target = test_target(1, arch),
                                       .passes = {.control = &(kva_pass_control){.verify_each = true}}};
  kva_status status = kva_compile(load(c, diag), &options, diag, &compiled);
  if (status == KVA_OK) {
    const kva_session_options session = {.threads = 2, .device = device};
    status = kva_session_create(compiled->artifact, &session, diag, &s);
  }
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  if (status != KVA_OK) fail_msg("%s does not compile", c->name);
  check_rounds(c, s);
  kva_session_destroy(s);
  kva_compiled_destroy(compiled);
  kva_diag_destroy(diag);
}

static void on_a_cpu(void **unused) {
  (void)unused;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(&cases[i], NULL, NULL);
}

static void on_the_simulator(void **unused) {
  (void)unused;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(&cases[i], "sm_80", "ptxsim");
  check(&cases[0], "sm_90a", "ptxsim");
}

/* Its recordings are of the steps between two decisions. */
static void on_a_simulated_cuda(void **unused) {
  (void)unused;
  const char *fake = getenv("KVASIR_FAKE_CUDA");
  if (!fake) skip();
  setenv("KVASIR_CUDA_LIBRARY", fake, 1);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(&cases[i], "sm_80", "cuda");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(on_a_cpu),
      cmocka_unit_test(on_the_simulator),
      cmocka_unit_test(on_a_simulated_cuda),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
