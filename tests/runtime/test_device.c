/* What every device must do: memory and copies; programs with inputs, constants, states, temporaries and outputs, for
 * several shapes; states that the host reads and writes between runs. Then what each refuses, and what the simulator
 * finds. */
#include "tests/runtime/device_sample.h"

/* ---- every device ------------------------------------------------------------------------------------------------ */

static void memory_and_copies(void **state) {
  const kva_device_class *class = require(state);
  kva_device *d;
  kva_pool *pool = kva_pool_create(2);
  assert_int_equal(class->create(pool, NULL, &d), KVA_OK);
  enum { N = 300000 }; /* more than one piece of a parallel copy */
  unsigned char *from = malloc(N), *to = calloc(N, 1);
  for (int i = 0; i < N; i++) from[i] = (unsigned char)(i * 7 + i / 256);
  kva_block a, b, empty;
  assert_int_equal(class->allocate(d, N, &a), KVA_OK);
  assert_int_equal(class->allocate(d, N + 1, &b), KVA_OK);
  assert_int_equal(class->allocate(d, 0, &empty), KVA_OK);
  assert_true((uintptr_t)a.data % KVA_ALIGNMENT == 0 && (uintptr_t)b.data % KVA_ALIGNMENT == 0);
  assert_int_equal(class->copy_in(d, a.data, from, N), KVA_OK);
  assert_int_equal(class->copy(d, (char *)b.data + 1, a.data, N), KVA_OK);
  assert_int_equal(class->copy(d, a.data, a.data, N), KVA_OK);
  assert_int_equal(class->copy(d, b.data, a.data, 0), KVA_OK);
  assert_int_equal(class->copy_out(d, to, (char *)b.data + 1, N), KVA_OK);
  assert_int_equal(class->synchronise(d), KVA_OK);
  assert_memory_equal(from, to, N);
  assert_string_equal(class->error(d), "");
  class->free(d, &a);
  class->free(d, &b);
  class->free(d, &empty);
  assert_null(a.data);
  class->destroy(d);
  kva_pool_destroy(pool);
  free(from);
  free(to);
}

static void programs_run(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s = open_session(&a, class, 2);
  enum { MOST = 9000 };
  float *x = malloc(MOST * sizeof *x), *y = malloc(MOST * sizeof *y), total, sum = 100;
  for (int i = 0; i < MOST; i++) x[i] = (float)i;
  const int64_t sizes[] = {33, 1, MOST, 0, 64, 33};
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    int64_t n = sizes[k];
    kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, n}, .data = x};
    kva_tensor out[4] = {{.data = NULL}, {.data = &total}, {.data = y}, {.data = NULL}};
    assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_OK);
    sum += (float)n;
    assert_true(total == sum);
    assert_true(out[0].rank == 1 && out[0].dims[0] == n && out[1].rank == 0 && out[0].dtype == KVA_F32);
    assert_ptr_equal(out[2].data, y);
    for (int64_t i = 0; i < n; i++) {
      assert_true(y[i] == expected(x, i) && ((float *)out[0].data)[i] == y[i] && ((float *)out[3].data)[i] == y[i]);
      assert_true(x[i] == (float)i);
    }
  }
  free(x);
  free(y);
  kva_session_destroy(s);
}

static float read_state(kva_session *s, const char *name) {
  kva_tensor t;
  assert_true(kva_session_state(s, name, &t));
  return *(float *)t.data;
}

static void states_are_current_and_writable(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s = open_session(&a, class, 1);
  float x[5] = {0}, total;
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, 5}, .data = x}, out[4], t;
  assert_true(read_state(s, "total") == 100 && read_state(s, "before") == 7);
  for (int i = 0; i < 2; i++) {
    memset(out, 0, sizeof out);
    assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_OK);
  }
  assert_true(*(float *)out[1].data == 110);
  assert_true(kva_session_state(s, "total", &t));
  assert_true(*(float *)t.data == 110);
  *(float *)t.data = -1;
  memset(out, 0, sizeof out);
  out[1].data = &total;
  assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_OK);
  assert_true(total == 4);
  assert_string_equal(kva_session_state_desc(s, 1, &t)->name, "total");
  assert_true(*(float *)t.data == 4 && read_state(s, "before") == 7);
  assert_false(kva_session_state(s, "nobody", &t));
  kva_session_destroy(s);
}

static void wrong_inputs_are_refused_and_change_nothing(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s = open_session(&a, class, 1);
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, 5}}, out[4] = {{.data = NULL}};
  assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_INVALID);
  assert_non_null(strstr(kva_session_error(s), "input 'x' has no data"));
  in.rank = 1;
  assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_INVALID);
  assert_true(read_state(s, "total") == 100);
  kva_session_destroy(s);
}

static void other_devices_code_is_refused(void **state) {
  const kva_device_class *class = require(state), *other = class->arch ? &kva_device_cpu : &kva_device_ptxsim;
  kva_artifact a = artifact_for(other);
  kva_session *s;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_session_create(&a, &(kva_session_options){.device = class->name}, diag, &s), KVA_INVALID);
  assert_null(s);
  assert_int_equal(kva_diag_count(diag), 1);
  const char *text = kva_diag_message(diag, 0, NULL, NULL);
  assert_non_null(strstr(text, class->name));
  assert_non_null(strstr(text, "compile it for"));
  kva_diag_destroy(diag);
}

static void profiles_count_every_step(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s;
  kva_session_options options = {.threads = 1, .device = class->name, .profile = true};
  assert_int_equal(kva_session_create(&a, &options, NULL, &s), KVA_OK);
  float x[40] = {0};
  for (int i = 0; i < 3; i++) {
    kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, 40}, .data = x}, out[4] = {{.data = NULL}};
    assert_int_equal(kva_session_run(s, P_RUN, &in, out), KVA_OK);
    assert_true(*(float *)out[1].data == (float)(140 + 40 * i));
  }
  const double *seconds;
  const int64_t *calls;
  assert_int_equal(kva_session_profile(s, P_RUN, &seconds, &calls), COUNT(run_steps));
  double total = 0;
  for (int i = 0; i < COUNT(run_steps); i++) {
    assert_int_equal(calls[i], 3);
    assert_true(seconds[i] >= 0);
    total += seconds[i];
  }
  assert_true(total > 0 && total < 60);
  kva_session_destroy(s);
}

/* All runs together last as long as they say; what they leave is what that many runs leave. */
static void measured_runs_give_the_same_results(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s = open_session(&a, class, 2);
  enum { N = 40, PARTS = 3 };
  float x[N];
  double seconds[PARTS] = {0}, start = kva_now(), sum = 0;
  for (int i = 0; i < N; i++) x[i] = (float)i;
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, N}, .data = x}, out[4] = {{.data = NULL}};
  assert_int_equal(kva_session_time(s, P_RUN, &in, out, 1e-3, PARTS, seconds), KVA_OK);
  for (int i = 0; i < N; i++) assert_true(((float *)out[2].data)[i] == expected(x, i));
  double runs = (*(float *)out[1].data - 100) / N, each = (runs - 4) / (PARTS + 1);
  assert_true(each >= 1 && each == (double)(int64_t)each); /* four runs, then the warm-up and the parts */
  for (int i = 0; i < PARTS; i++) {
    assert_true(seconds[i] > 0);
    sum += seconds[i] * each;
  }
  assert_true(sum <= kva_now() - start);
  in.rank = 1;
  assert_int_not_equal(kva_session_time(s, P_RUN, &in, out, 1e-3, PARTS, seconds), KVA_OK);
  assert_true(*kva_session_error(s));
  kva_session_destroy(s);
}

/* Device cuda tells of its kernels, the others do not. */
static void kernels_have_facts(void **state) {
  const kva_device_class *class = require(state);
  kva_artifact a = artifact_for(class);
  kva_session *s = open_session(&a, class, 1);
  kva_kernel_facts f = {0};
  bool is_cuda = !strcmp(class->name, "cuda");
  assert_int_equal(kva_session_kernels(s), a.n_kernels);
  assert_int_equal(kva_session_kernel(s, 0, &f), is_cuda);
  assert_false(kva_session_kernel(s, a.n_kernels, &f) || kva_session_kernel(s, -1, &f));
  if (is_cuda) assert_true(f.code == KVA_CODE_PTX && f.registers > 0 && f.threads == BLOCK && !f.local_bytes && f.name);
  kva_session_destroy(s);
}

/* ---- one device, or none ----------------------------------------------------------------------------------------- */

static void names_of_devices(void **unused) {
  (void)unused;
  kva_diag *diag = kva_diag_create();
  const char *arch = "?";
  assert_int_equal(kva_device_check(NULL, diag, &arch), KVA_OK);
  assert_null(arch);
  assert_int_equal(kva_device_check("ptxsim", diag, &arch), KVA_OK);
  assert_string_equal(arch, "sm_80");
  assert_int_equal(kva_diag_count(diag), 0);
  assert_int_equal(kva_device_check("gpu", diag, &arch), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "there are: cpu, cuda, ptxsim"));
  kva_diag_destroy(diag);
}

static void findings_fail_the_run(void **unused) {
  (void)unused;
  kva_artifact a = artifact_for(&kva_device_ptxsim);
  kva_session *s = open_session(&a, &kva_device_ptxsim, 1);
  float x[64] = {0};
  kva_tensor in = {.dtype = KVA_F32, .rank = 2, .dims = {1, 33}, .data = x}, out = {.data = NULL};
  assert_int_equal(kva_session_run(s, P_BEYOND, &in, &out), KVA_INVALID);
  static const char *const parts[] = {"beyond: step 0 (kv.add sum) on device ptxsim", "findings of the simulator",
                                      "global access out of bounds", "beyond:"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) assert_non_null(strstr(kva_session_error(s), parts[i]));
  in.dims[1] = 64;
  out.data = NULL;
  assert_int_equal(kva_session_run(s, P_BEYOND, &in, &out), KVA_OK);
  assert_string_equal(kva_session_error(s), "");
  out.data = NULL;
  assert_int_equal(kva_session_run(s, P_SPOIL, &in, &out), KVA_INVALID);
  assert_non_null(strstr(kva_session_error(s), "store to read-only memory"));
  assert_true(x[0] == 0);
  kva_session_destroy(s);
}

static void damaged_modules_are_refused(void **unused) {
  (void)unused;
  kva_artifact good = artifact_for(&kva_device_ptxsim), a = good;
  kva_kernel_desc spoilt[N_DEVICE_KERNELS];
  memcpy(spoilt, kernels, sizeof spoilt);
  spoilt[D_SPOIL].name = "nowhere";
  kva_diag *diag = kva_diag_create();
  kva_session *s;
  const kva_session_options options = {.device = "ptxsim"};
  a.kernels = spoilt;
  assert_int_equal(kva_session_create(&a, &options, diag, &s), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "no kernel 'nowhere'"));
  spoilt[D_SPOIL] = kernels[D_SPOIL];
  spoilt[D_ADD].symbols = LIST(2);
  assert_int_equal(kva_session_create(&a, &options, diag, &s), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 1, NULL, NULL), "calls kernel 0"));
  a = good;
  kva_code code = {.format = KVA_CODE_PTX, .arch = "sm_80", .data = "this is no PTX", .bytes = 14};
  a.codes = &code;
  assert_int_not_equal(kva_session_create(&a, &options, diag, &s), KVA_OK);
  code.data = NULL;
  assert_int_equal(kva_session_create(&a, &options, diag, &s), KVA_INVALID);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      ALL(memory_and_copies),
      ALL(programs_run),
      ALL(states_are_current_and_writable),
      ALL(wrong_inputs_are_refused_and_change_nothing),
      ALL(other_devices_code_is_refused),
      ALL(equal_runs_give_equal_results),
      ALL(profiles_count_every_step),
      ALL(measured_runs_give_the_same_results),
      ALL(kernels_have_facts),
      cmocka_unit_test(names_of_devices),
      cmocka_unit_test(findings_fail_the_run),
      cmocka_unit_test(damaged_modules_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
