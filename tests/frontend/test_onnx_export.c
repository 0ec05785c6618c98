/* The exporter: KVShift in every form that has one, through the file and back, both ways it can be read: as the
 * operator (bit for bit) and as the function body that other runtimes execute. Operators without a case in the official
 * suite. (test_onnx_suite.c exports everything that it imports.) */
#include "tests/frontend/onnx_pack.h"
#include "ops/ids.h"

#include <math.h>

typedef struct shift_case {
  const char *name, *boundary;
  int64_t time_axis, window;
  uint32_t weight_rank;
  bool past;
  kva_dtype dtype;
  bool segments, left_pad;
} shift_case;

enum { B = 2, T = 5, H = 3, D = 4 };

static kva_dim constant(kva_module *m, int64_t v) {
  return kva_expr_const(m->exprs, v);
}

static const kva_type *rows_type(kva_module *m, const shift_case *c, kva_dim rows) {
  kva_dim b = constant(m, B), h = constant(m, H), d = constant(m, D);
  kva_dim by_time[] = {b, rows, h, d}, by_head[] = {b, h, rows, d};
  return kva_type_tensor(m, c->dtype, 4, c->time_axis == 1 ? by_time : by_head);
}

static const kva_type *weight_type(kva_module *m, const shift_case *c, kva_dim rows) {
  kva_dim h = constant(m, H), w = constant(m, c->window);
  kva_dim per_head[] = {h, w, constant(m, D)}, gates[] = {constant(m, B), h, rows, w};
  return kva_type_tensor(m, c->dtype, c->weight_rank, c->weight_rank == 4 ? gates : per_head);
}

static kva_module *shift_module(const shift_case *c, kva_diag *diag) {
  kva_module *m = kva_module_create(diag);
  kva_function *f = kva_function_create(m, "main");
  kva_dim rows = kva_expr_symbol(m->exprs, "T");
  uint32_t n_in = c->left_pad ? 5 : c->segments ? 4 : c->past ? 3 : 2;
  kva_value *in[5] = {kva_graph_add_input(f->graph, rows_type(m, c, rows), "x"),
                      kva_graph_add_input(f->graph, weight_type(m, c, rows), "w")};
  if (c->past) in[2] = kva_graph_add_input(f->graph, rows_type(m, c, constant(m, c->window - 1)), "past");
  kva_dim batch_rows[] = {constant(m, B), rows};
  if (c->segments) in[3] = kva_graph_add_input(f->graph, kva_type_tensor(m, KVA_I32, 2, batch_rows), "segments");
  if (c->left_pad) in[4] = kva_graph_add_input(f->graph, kva_type_tensor(m, KVA_I64, 1, batch_rows), "left_pad");
  kva_builder b = {.m = m, .graph = f->graph};
  kva_kv_shift_attrs attrs = {.time_axis = c->time_axis, .boundary = c->boundary};
  kva_node *n = kva_build_node(&b, KVA_OP_kv_shift, n_in, in, 2, &attrs);
  kva_value *out[] = {kva_result(n, 0), kva_result(n, 1)};
  (void)kva_build_node(&b, KVA_OP_return, 2, out, 0, NULL);
  f->output_names = kva_arena_memdup(m->arena, (const char *[]){"y", "state"}, 2 * sizeof(char *));
  assert_false(b.failed);
  return m;
}

/* Documents of two rows [B, T]; padding of 0, 2, ... rows [B]. */
static int64_t integer(const kva_type *type, int64_t i) {
  return type->rank == 2 ? i % T / 2 : 2 * i;
}

static kva_ref_tensor *filled(kva_dtype t, const kva_type *type) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t i = 0; i < type->rank; i++)
    if (!kva_expr_is_const(type->dims[i], &dims[i])) dims[i] = T;
  kva_ref_tensor *w = kva_ref_tensor_create(t, type->rank, dims);
  for (int64_t i = 0; i < w->n; i++)
    if (kva_dtype_is_float(t))
      w->f[i] = kva_round_f64(t, sin(1.7 * (double)i + (double)type->rank));
    else
      w->i[i] = integer(type, i);
  return w;
}

static void run(kva_module *m, kva_diag *diag, kva_ref_tensor **out) {
  kva_function *f = m->functions.data[0];
  const kva_ref_tensor *in[8];
  for (uint32_t i = 0; i < f->graph->inputs.len; i++)
    in[i] = filled(f->graph->inputs.data[i]->type->dtype, f->graph->inputs.data[i]->type);
  kva_status status = kva_ref_run(m, f, in, out, NULL, NULL, NULL, NULL, diag);
  if (status) kva_diag_print(diag, stdout);
  assert_int_equal(status, KVA_OK);
  for (uint32_t i = 0; i < f->graph->inputs.len; i++) kva_ref_tensor_free((kva_ref_tensor *)(uintptr_t)in[i]);
}

static void expect_close(kva_ref_tensor **a, kva_ref_tensor **b, uint32_t n, double tolerance) {
  for (uint32_t k = 0; k < n; k++) {
    assert_int_equal(a[k]->dtype, b[k]->dtype);
    assert_int_equal(a[k]->n, b[k]->n);
    assert_memory_equal(a[k]->dims, b[k]->dims, a[k]->rank * sizeof *a[k]->dims);
    for (int64_t i = 0; i < a[k]->n; i++) assert_true(fabs(a[k]->f[i] - b[k]->f[i]) <= tolerance);
    kva_ref_tensor_free(b[k]);
  }
}

/* The bytes of the file with the function's domain changed, so that it is a function like any other. */
static kva_text as_foreign_function(const char *path, kva_diag *diag) {
  kva_file file;
  kva_text copy = {0};
  assert_int_equal(kva_file_map(path, diag, &file), KVA_OK);
  kva_text_add_bytes(&copy, file.data, file.size);
  kva_file_unmap(&file);
  int replaced = 0;
  for (size_t i = 0; i + 9 <= copy.len; i++)
    if (!memcmp(copy.data + i, "ai.kvasir", 9)) memcpy(copy.data + i, "xx.kvasir", 9), replaced++;
  assert_int_equal(replaced, 3); /* opset import, node, function */
  return copy;
}

static int count_nodes(const kva_module *m, kva_op_id op) {
  int n = 0;
  for (const kva_node *at = m->functions.data[0]->graph->first; at; at = at->next) n += kva_is(at, op);
  return n;
}

static void check_shift(const shift_case *c, const char *path) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = shift_module(c, diag), *operator_form = NULL, *body_form = NULL;
  kva_ref_tensor *want[2], *got[2];
  run(m, diag, want);
  assert_int_equal(kva_export_onnx(m, path, NULL, NULL, diag), KVA_OK);
  assert_int_equal(kva_load_model(path, NULL, diag, &operator_form), KVA_OK);
  assert_int_equal(count_nodes(operator_form, KVA_OP_kv_shift), 1);
  run(operator_form, diag, got);
  expect_close(want, got, 2, 0);
  kva_text body = as_foreign_function(path, diag);
  kva_status status = pk_load(&body, diag, &body_form);
  if (status) kva_diag_print(diag, stdout);
  assert_int_equal(status, KVA_OK);
  assert_int_equal(count_nodes(body_form, KVA_OP_kv_shift), 0);
  run(body_form, diag, got);
  expect_close(want, got, 2, c->dtype == KVA_F32 ? 1e-6 : 1e-2);
  for (int i = 0; i < 2; i++) kva_ref_tensor_free(want[i]);
  kva_text_free(&body);
  kva_module_destroy(m);
  kva_module_destroy(operator_form);
  kva_module_destroy(body_form);
  kva_diag_destroy(diag);
}

static void test_kv_shift(void **unused) {
  (void)unused;
  static const shift_case cases[] = {
      {"paper", NULL, 2, 2, 2, false, KVA_F32, false, false},
      {"time first", "zero", 1, 2, 2, false, KVA_F32, false, false},
      {"keep", "keep", 2, 2, 2, false, KVA_F32, false, false},
      {"edge", "edge", 1, 3, 2, false, KVA_F32, false, false},
      {"channels", "zero", 2, 4, 3, false, KVA_F32, false, false},
      {"channels, time first", "zero", 1, 2, 3, false, KVA_F32, false, false},
      {"gates", "zero", 2, 3, 4, false, KVA_F32, false, false},
      {"gates, time first", "keep", 1, 2, 4, false, KVA_F32, false, false},
      {"past", "zero", 2, 2, 2, true, KVA_F32, false, false},
      {"past, keep", "keep", 1, 3, 2, true, KVA_F32, false, false},
      {"one tap", "zero", 2, 1, 2, false, KVA_F32, false, false},
      {"half", "zero", 2, 2, 2, false, KVA_F16, false, false},
      {"documents", "zero", 2, 2, 2, false, KVA_F32, true, false},
      {"documents, time first", "keep", 1, 4, 3, false, KVA_F32, true, false},
      {"documents, edge", "edge", 2, 3, 2, false, KVA_F32, true, false},
      {"documents, past", "zero", 1, 4, 2, true, KVA_F32, true, false},
      {"documents, one tap", "zero", 1, 1, 2, false, KVA_F32, true, false},
      {"padding", "zero", 2, 3, 2, false, KVA_F32, false, true},
      {"padding, keep", "keep", 1, 2, 4, false, KVA_F32, false, true},
      {"padding, past", "zero", 1, 4, 2, true, KVA_F32, false, true},
      {"padding, one tap", "keep", 2, 1, 2, false, KVA_F32, false, true},
      {"documents, padding", "keep", 2, 3, 2, false, KVA_F32, true, true},
      {"documents, padding, past, half", "zero", 1, 3, 2, true, KVA_F16, true, true},
  };
  char path[] = "/tmp/kvasir-onnx-XXXXXX";
  close(mkstemp(path));
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    print_message("%s\n", cases[i].name);
    check_shift(&cases[i], path);
  }
  unlink(path);
}

/* ---- states and refusals ----------------------------------------------------------------------------------------- */

static const float weights[4] = {1, 2, 3, 4};
static const void *give_weights(void *user, const kva_state *s) {
  (void)user, (void)s;
  return weights;
}

static kva_module *state_module(kva_diag *diag, kva_op_id op) {
  kva_module *m = kva_module_create(diag);
  kva_function *f = kva_function_create(m, "main");
  kva_dim four = constant(m, 4);
  const kva_type *type = kva_type_tensor(m, KVA_F32, 1, &four);
  kva_state *s = kva_state_create(m, "layer.0.w", type, KVA_STATE_PARAM);
  kva_builder b = {.m = m, .graph = f->graph};
  kva_value *x = kva_graph_add_input(f->graph, type, "x");
  kva_value *w = kva_build(&b, KVA_OP_state_read, 0, NULL, &(kva_state_read_attrs){.state = s});
  kva_value *y =
      op == KVA_OP_bitcast ? kva_build(&b, op, 1, &x, &(kva_bitcast_attrs){.to = KVA_I32}) : kva_build2(&b, op, x, w);
  (void)kva_build_node(&b, KVA_OP_return, 1, &y, 0, NULL);
  f->output_names = kva_arena_memdup(m->arena, (const char *[]){"y"}, sizeof(char *));
  return m;
}

static void test_states(void **unused) {
  (void)unused;
  char path[] = "/tmp/kvasir-onnx-XXXXXX";
  close(mkstemp(path));
  kva_diag *diag = kva_diag_create();
  kva_module *m = state_module(diag, KVA_OP_add), *again = NULL;
  assert_int_equal(kva_export_onnx(m, path, NULL, NULL, diag), KVA_INVALID);
  assert_true(pk_has_message(diag, "state layer.0.w has no values"));
  kva_diag_clear(diag);
  assert_int_equal(kva_export_onnx(m, path, give_weights, NULL, diag), KVA_OK);
  assert_int_equal(kva_load_model(path, NULL, diag, &again), KVA_OK);
  kva_ref_tensor *out[1];
  run(again, diag, out);
  for (int i = 0; i < 4; i++) assert_true(fabs(out[0]->f[i] - (weights[i] + sin(1.7 * i + 1))) < 1e-6);
  kva_ref_tensor_free(out[0]);
  kva_module_destroy(again);
  kva_module_destroy(m);
  m = state_module(diag, KVA_OP_bitcast);
  assert_int_equal(kva_export_onnx(m, path, give_weights, NULL, diag), KVA_UNSUPPORTED);
  assert_true(pk_has_message(diag, "kv.bitcast"));
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  unlink(path);
}

/* Runtimes refuse two nodes of one name, and one ONNX node often becomes several internal ones. */
static void test_node_names_are_unique(void **unused) {
  (void)unused;
  char path[] = "/tmp/kvasir-onnx-XXXXXX";
  close(mkstemp(path));
  kva_diag *diag = kva_diag_create();
  kva_module *m = kva_module_create(diag);
  kva_function *f = kva_function_create(m, "main");
  kva_builder b = {.m = m, .graph = f->graph, .loc = {.node = "layer"}};
  kva_value *x = kva_graph_add_input(f->graph, kva_type_scalar(m, KVA_F32), "x");
  kva_value *y = kva_build1(&b, KVA_OP_exp, kva_build1(&b, KVA_OP_relu, kva_neg(&b, x)));
  (void)kva_build_node(&b, KVA_OP_return, 1, &y, 0, NULL);
  assert_int_equal(kva_export_onnx(m, path, NULL, NULL, diag), KVA_OK);
  kva_file file;
  assert_int_equal(kva_file_map(path, diag, &file), KVA_OK);
  int found = 0;
  for (const char *const *name = (const char *const[]){"\x1a\x05layer", "\x1a\x07layer_2", "\x1a\x07layer_3", NULL};
       *name; name++)
    found += memmem(file.data, file.size, *name, strlen(*name)) != NULL;
  assert_int_equal(found, 3);
  kva_file_unmap(&file);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  unlink(path);
}

/* A function that is built, exported and read again. */
typedef struct round_trip {
  char path[32];
  kva_diag *diag;
  kva_module *m, *again;
  kva_function *f;
  kva_builder b;
} round_trip;

static round_trip trip_create(void) {
  round_trip t = {.path = "/tmp/kvasir-onnx-XXXXXX", .diag = kva_diag_create()};
  close(mkstemp(t.path));
  t.m = kva_module_create(t.diag);
  t.f = kva_function_create(t.m, "main");
  t.b = (kva_builder){.m = t.m, .graph = t.f->graph};
  return t;
}

static void trip_return(round_trip *t, kva_value *y) {
  (void)kva_build_node(&t->b, KVA_OP_return, 1, &y, 0, NULL);
  t->f->output_names = kva_arena_memdup(t->m->arena, (const char *[]){"y"}, sizeof(char *));
  assert_int_equal(kva_export_onnx(t->m, t->path, NULL, NULL, t->diag), KVA_OK);
  assert_int_equal(kva_load_model(t->path, NULL, t->diag, &t->again), KVA_OK);
}

static void trip_free(round_trip *t) {
  kva_module_destroy(t->again);
  kva_module_destroy(t->m);
  kva_diag_destroy(t->diag);
  unlink(t->path);
}

/* An attribute of a standard operator is a 32-bit float in the file: what is computed in double reads its decimal. */
static void test_epsilon_of_doubles(void **unused) {
  (void)unused;
  round_trip t = trip_create();
  kva_module *m = t.m;
  kva_dim two = constant(m, 2), dims[] = {constant(m, 3), two};
  kva_value *in[5];
  for (int i = 0; i < 5; i++)
    in[i] = kva_graph_add_input(t.f->graph, kva_type_tensor(m, KVA_F64, i ? 1 : 2, i ? &two : dims),
                                (const char *[]){"x", "scale", "bias", "mean", "var"}[i]);
  kva_value *y = kva_build(&t.b, KVA_OP_batch_norm, 5, in, &(kva_batch_norm_attrs){.eps = 1e-5});
  trip_return(&t, y);
  const kva_node *found = t.again->functions.data[0]->graph->first;
  while (found && !kva_is(found, KVA_OP_batch_norm)) found = found->next;
  assert_non_null(found);
  assert_true(((const kva_batch_norm_attrs *)found->attrs)->eps == 1e-5);
  trip_free(&t);
}

/* What the function that was read again makes of 0, 1, ... n - 1. */
static kva_ref_tensor *numbers_through(const round_trip *t, int64_t n) {
  kva_ref_tensor *in = kva_ref_tensor_create(KVA_F32, 1, &n), *out = NULL;
  for (int64_t i = 0; i < n; i++) in->f[i] = (double)i;
  assert_int_equal(kva_ref_run(t->again, t->again->functions.data[0], (const kva_ref_tensor *const[]){in}, &out, NULL,
                               NULL, NULL, NULL, t->diag),
                   KVA_OK);
  kva_ref_tensor_free(in);
  return out;
}

/* kv.pad repeats all of x, where the operator of ONNX repeats what negative amounts leave. */
static void test_pads_that_crop(void **unused) {
  (void)unused;
  round_trip t = trip_create();
  kva_module *m = t.m;
  kva_dim four = constant(m, 4), before = constant(m, 1), after = constant(m, -2);
  kva_value *x = kva_graph_add_input(t.f->graph, kva_type_tensor(m, KVA_F32, 1, &four), "x");
  kva_value *y = kva_build(&t.b, KVA_OP_pad, 1, &x, &(kva_pad_attrs){{1, &before}, {1, &after}, "wrap"});
  trip_return(&t, y);
  kva_ref_tensor *out = numbers_through(&t, 4);
  assert_int_equal(out->n, 3);
  for (int i = 0; i < 3; i++) assert_true(out->f[i] == (i + 3) % 4);
  kva_ref_tensor_free(out);
  trip_free(&t);
}

/* From the last row of T on, to the first one and to the one after it. */
static void test_slices_backwards(void **unused) {
  (void)unused;
  enum { ROWS = 4 };
  for (int first = 0; first < 2; first++) {
    round_trip t = trip_create();
    kva_dim rows = kva_expr_symbol(t.m->exprs, "T"), start = kva_expr_addi(t.m->exprs, rows, -1);
    kva_dim count = kva_expr_addi(t.m->exprs, rows, -first);
    kva_value *x = kva_graph_add_input(t.f->graph, kva_type_tensor(t.m, KVA_F32, 1, &rows), "x");
    trip_return(
        &t, kva_build(&t.b, KVA_OP_slice, 1, &x, &(kva_slice_attrs){{1, &start}, {1, &count}, {1, (int64_t[]){-1}}}));
    kva_ref_tensor *out = numbers_through(&t, ROWS);
    assert_int_equal(out->n, ROWS - first);
    for (int i = 0; i < out->n; i++) assert_true(out->f[i] == ROWS - 1 - i);
    kva_ref_tensor_free(out);
    trip_free(&t);
  }
}

/* The last row of T, of which it is known that it is one: it is added to all of them. */
static void test_last_row(void **unused) {
  (void)unused;
  round_trip t = trip_create();
  kva_dim rows = kva_expr_symbol(t.m->exprs, "T"), start = kva_expr_addi(t.m->exprs, rows, -1), one = constant(t.m, 1);
  kva_value *x = kva_graph_add_input(t.f->graph, kva_type_tensor(t.m, KVA_F32, 1, &rows), "x");
  kva_value *last = kva_build(&t.b, KVA_OP_slice, 1, &x, &(kva_slice_attrs){{1, &start}, {1, &one}, {0, NULL}});
  trip_return(&t, kva_add(&t.b, x, last));
  kva_ref_tensor *out = numbers_through(&t, 3);
  for (int i = 0; i < 3; i++) assert_true(out->f[i] == i + 2);
  kva_ref_tensor_free(out);
  trip_free(&t);
}

/* ONNX slices no types of 4 bits, and ONNX Runtime chooses between no bools. */
static void test_types_that_others_lack(void **unused) {
  (void)unused;
  round_trip t = trip_create();
  kva_dim three = constant(t.m, 3), one = constant(t.m, 1), two = constant(t.m, 2);
  kva_value *x = kva_graph_add_input(t.f->graph, kva_type_tensor(t.m, KVA_I4, 1, &three), "x");
  trip_return(&t, kva_build(&t.b, KVA_OP_slice, 1, &x, &(kva_slice_attrs){{1, &one}, {1, &two}, {0, NULL}}));
  assert_int_equal(count_nodes(t.again, KVA_OP_cast), 2);
  assert_int_equal(kva_graph_output(t.again->functions.data[0]->graph, 0)->type->dtype, KVA_I4);
  trip_free(&t);
  t = trip_create();
  kva_value *in[3];
  kva_ref_tensor *given[3], *out = NULL;
  for (int i = 0; i < 3; i++) {
    in[i] = kva_graph_add_input(t.f->graph, kva_type_scalar(t.m, KVA_BOOL), (const char *[]){"c", "x", "y"}[i]);
    given[i] = kva_ref_tensor_create(KVA_BOOL, 0, NULL);
  }
  trip_return(&t, kva_build(&t.b, KVA_OP_where, 3, in, NULL));
  assert_int_equal(count_nodes(t.again, KVA_OP_where), 0);
  for (int i = 0; i < 8; i++) {
    for (int j = 0; j < 3; j++) given[j]->i[0] = i >> j & 1;
    const kva_ref_tensor *const *all = (const kva_ref_tensor *const *)given;
    assert_int_equal(kva_ref_run(t.again, t.again->functions.data[0], all, &out, NULL, NULL, NULL, NULL, t.diag),
                     KVA_OK);
    assert_int_equal(out->i[0], given[i & 1 ? 1 : 2]->i[0]);
    kva_ref_tensor_free(out);
  }
  for (int i = 0; i < 3; i++) kva_ref_tensor_free(given[i]);
  trip_free(&t);
}

/* Bits of integers are cast in every opset; those of others, and products that run on, need a new one. */
static void test_bits_and_products(void **unused) {
  (void)unused;
  round_trip t = trip_create();
  kva_value *x = kva_graph_add_input(t.f->graph, kva_type_scalar(t.m, KVA_U8), "x");
  trip_return(&t, kva_build(&t.b, KVA_OP_bitcast, 1, &x, &(kva_bitcast_attrs){.to = KVA_I8}));
  assert_int_equal(count_nodes(t.again, KVA_OP_cast), 1);
  trip_free(&t);
  t = trip_create();
  kva_dim three = constant(t.m, 3);
  x = kva_graph_add_input(t.f->graph, kva_type_tensor(t.m, KVA_F32, 1, &three), "x");
  kva_value *product = kva_build(&t.b, KVA_OP_cumprod, 1, &x, &(kva_cumprod_attrs){.reverse = true});
  kva_value *y = kva_build(&t.b, KVA_OP_bitcast, 1, &product, &(kva_bitcast_attrs){.to = KVA_I32});
  (void)kva_build_node(&t.b, KVA_OP_return, 1, &y, 0, NULL);
  kva_export_form form = {.opset = 25};
  assert_int_equal(kva_export_onnx_as(t.m, &form, t.path, NULL, NULL, t.diag), KVA_UNSUPPORTED);
  assert_true(pk_has_message(t.diag, "kv.bitcast: ONNX has it from opset 26 on"));
  assert_true(pk_has_message(t.diag, "kv.cumprod: ONNX has it from opset 26 on"));
  kva_diag_clear(t.diag);
  form.opset = 26;
  assert_int_equal(kva_export_onnx_as(t.m, &form, t.path, NULL, NULL, t.diag), KVA_OK);
  assert_int_equal(kva_load_model(t.path, NULL, t.diag, &t.again), KVA_OK);
  assert_int_equal(count_nodes(t.again, KVA_OP_bitcast), 1);
  assert_int_equal(count_nodes(t.again, KVA_OP_cumprod), 1);
  trip_free(&t);
}

/* Types that ONNX got later need their opset, and the file says the version of the format that has them. */
static void test_new_types(void **unused) {
  (void)unused;
  round_trip t = trip_create();
  kva_value *x = kva_graph_add_input(t.f->graph, kva_type_scalar(t.m, KVA_F32), "x"), *y = kva_cast(&t.b, x, KVA_I2);
  kva_export_form form = {.opset = 24};
  kva_file file;
  (void)kva_build_node(&t.b, KVA_OP_return, 1, &y, 0, NULL);
  assert_int_equal(kva_export_onnx_as(t.m, &form, t.path, NULL, NULL, t.diag), KVA_UNSUPPORTED);
  assert_true(pk_has_message(t.diag, "int2 is newer than the exported opset 24: --opset 25"));
  kva_diag_clear(t.diag);
  form.opset = 25;
  assert_int_equal(kva_export_onnx_as(t.m, &form, t.path, NULL, NULL, t.diag), KVA_OK);
  assert_int_equal(kva_file_map(t.path, t.diag, &file), KVA_OK);
  assert_memory_equal(file.data, "\x08\x0d", 2); /* ir_version = 13 */
  kva_file_unmap(&file);
  assert_int_equal(kva_load_model(t.path, NULL, t.diag, &t.again), KVA_OK);
  assert_int_equal(kva_graph_output(t.again->functions.data[0]->graph, 0)->type->dtype, KVA_I2);
  trip_free(&t);
}

/* DequantizeLinear has no doubles, and the type of its result is that of the scale: what a small scale of bfloat16
 * would lose in float16 is kept. */
static void test_types_of_scales(void **unused) {
  (void)unused;
  static const struct {
    kva_dtype scale, result;
    bool fits;
  } cases[] = {{KVA_BF16, KVA_F64, true}, {KVA_F32, KVA_F64, false}, {KVA_BF16, KVA_F16, true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    round_trip t = trip_create();
    kva_value *in[] = {kva_graph_add_input(t.f->graph, kva_type_scalar(t.m, KVA_I8), "q"),
                       kva_graph_add_input(t.f->graph, kva_type_scalar(t.m, cases[i].scale), "s")};
    kva_value *y = kva_build(&t.b, KVA_OP_dequantize, 2, in, &(kva_dequantize_attrs){.to = cases[i].result});
    if (cases[i].fits) {
      trip_return(&t, y);
      const kva_node *found = t.again->functions.data[0]->graph->first;
      while (found && !kva_is(found, KVA_OP_dequantize)) found = found->next;
      assert_non_null(found);
      assert_int_equal(found->results[0].type->dtype, KVA_F32);
      assert_int_equal(kva_graph_output(t.again->functions.data[0]->graph, 0)->type->dtype, cases[i].result);
    } else {
      (void)kva_build_node(&t.b, KVA_OP_return, 1, &y, 0, NULL);
      assert_int_equal(kva_export_onnx(t.m, t.path, NULL, NULL, t.diag), KVA_UNSUPPORTED);
      assert_true(pk_has_message(t.diag, "kv.dequantize: ONNX dequantises to no doubles"));
    }
    trip_free(&t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_kv_shift),
                                     cmocka_unit_test(test_states),
                                     cmocka_unit_test(test_node_names_are_unique),
                                     cmocka_unit_test(test_epsilon_of_doubles),
                                     cmocka_unit_test(test_pads_that_crop),
                                     cmocka_unit_test(test_slices_backwards),
                                     cmocka_unit_test(test_last_row),
                                     cmocka_unit_test(test_types_that_others_lack),
                                     cmocka_unit_test(test_bits_and_products),
                                     cmocka_unit_test(test_new_types),
                                     cmocka_unit_test(test_types_of_scales)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
