/* What inference refuses: each case names a part of the message that must reach the user. */
#include "tools/verify/cases.h"
#include "ops/ids.h"

#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

typedef struct error_case {
  kva_case c;
  const char *message;
} error_case;

static const error_case error_cases[] = {
    {{.op = KVA_OP_add, .in = {{"3"}}}, "expected 2 to 2 operands, found 1"},
    {{.op = KVA_OP_add, .in = {{"3"}, {"-"}}}, "operand 1 is required"},
    {{.op = KVA_OP_add, .in = {{"2,3"}, {"4"}}}, "float[2, 3] and float[4] do not broadcast"},
    {{.op = KVA_OP_add, .in = {{"N=4"}, {"4"}}}, "do not broadcast"},
    {{.op = KVA_OP_add, .in = {{"3"}, {"3", 0, 0, KVA_I32}}}, "operand 1: expected a tensor of float"},
    {{.op = KVA_OP_exp, .dtype = KVA_I32, .in = {{"3"}}}, "operand 0: expected a tensor of floats"},
    {{.op = KVA_OP_logical_not, .in = {{"3"}}}, "expected a tensor of bool"},
    {{.op = KVA_OP_bit_and, .in = {{"3"}, {"3"}}}, "expected a tensor of integers"},
    {{.op = KVA_OP_where, .in = {{"3"}, {"3"}, {"3"}}}, "operand 0: expected a tensor of bool"},
    {{.op = KVA_OP_bitcast, .attrs = "to=int64", .in = {{"3"}}}, "as wide as int64"},
    {{.op = KVA_OP_bitcast, .attrs = "to=int8", .dtype = KVA_F8E5M2, .in = {{"3"}}}, "not supported"},
    {{.op = KVA_OP_cast, .attrs = "to=string", .in = {{"3"}}}, "to string is not supported"},
    {{.op = KVA_OP_reduce_sum, .attrs = "axes=2", .in = {{"3,4"}}}, "axis 2 is outside [-2, 2)"},
    {{.op = KVA_OP_reduce_sum, .attrs = "axes=0,-2", .in = {{"3,4"}}}, "axis 0 is listed twice"},
    {{.op = KVA_OP_argmax, .attrs = "axis=1", .in = {{"3,0"}}}, "axis 1 is empty"},
    {{.op = KVA_OP_top_k, .in = {{"3,4"}}}, "attribute count is missing"},
    {{.op = KVA_OP_top_k, .attrs = "count=4; axis=0", .in = {{"3,4"}}}, "axis 0 has 3 elements; count is 4"},
    {{.op = KVA_OP_top_k, .attrs = "count=1; axis=2", .in = {{"3,4"}}}, "axis"},
    {{.op = KVA_OP_cumsum, .attrs = "axis=-2", .in = {{"3"}}}, "axis -2 is outside"},
    {{.op = KVA_OP_reshape, .attrs = "shape=5", .in = {{"2,3"}}}, "changes the number of elements"},
    {{.op = KVA_OP_reshape, .attrs = "shape=2,M", .in = {{"N=4"}}}, "not provably the same number"},
    {{.op = KVA_OP_transpose, .attrs = "perm=0,0", .in = {{"2,3"}}}, "every axis"},
    {{.op = KVA_OP_transpose, .attrs = "perm=1,0", .in = {{"2,3,4"}}}, "2 entries for an operand of rank 3"},
    {{.op = KVA_OP_slice, .attrs = "starts=3; shape=3", .in = {{"5"}}}, "leave [0, 5)"},
    {{.op = KVA_OP_slice, .attrs = "starts=3; shape=2; steps=0", .in = {{"5"}}}, "step 0"},
    {{.op = KVA_OP_slice, .attrs = "starts=3,0; shape=2", .in = {{"5"}}}, "2 starts"},
    {{.op = KVA_OP_expand, .attrs = "shape=4", .in = {{"3"}}}, "broadcasts to float[4]"},
    {{.op = KVA_OP_pad, .attrs = "before=1; after=1; mode=mirror", .in = {{"3"}}}, "mode \"mirror\""},
    {{.op = KVA_OP_pad, .attrs = "before=-2; after=-2", .in = {{"3"}}}, "more is cropped"},
    {{.op = KVA_OP_concat, .attrs = "axis=0", .in = {{"2,3"}, {"2,4"}}}, "operand 1: expected float[2, 3]"},
    {{.op = KVA_OP_gather, .in = {{"3"}, {"2"}}}, "expected indices of int32 or int64"},
    {{.op = KVA_OP_gather, .attrs = "axis=1", .in = {{"3"}, {"2", 0, 0, KVA_I64}}}, "axis 1 is outside"},
    {{.op = KVA_OP_dequantize, .in = {{"3"}, {""}}}, "expected integers of at most 32 bits or 8-bit floats"},
    {{.op = KVA_OP_dequantize, .in = {{"3", 0, 0, KVA_I8}, {"", 0, 0, KVA_I8}}},
     "operand 1: expected a tensor of float"},
    {{.op = KVA_OP_dequantize, .attrs = "block=2", .in = {{"3,5", 0, 0, KVA_I8}, {"3,2"}}}, "operand 1: expected"},
    {{.op = KVA_OP_dequantize, .attrs = "axis=0", .in = {{"3,5", 0, 0, KVA_I8}, {"3"}, {"", 0, 0, KVA_I8}}},
     "operand 2: expected"},
    {{.op = KVA_OP_dequantize, .attrs = "to=int8", .in = {{"3", 0, 0, KVA_I8}, {""}}},
     "expected a float type as result"},
    {{.op = KVA_OP_unpack, .attrs = "extent=9", .in = {{"1,4", 0, 0, KVA_U32}}},
     "not as many words as the extent needs"},
    {{.op = KVA_OP_unpack, .attrs = "extent=8", .in = {{"1,4", 0, 0, KVA_I32}}}, "expected uint32, found int32"},
    {{.op = KVA_OP_unpack, .attrs = "extent=8; to=int16", .in = {{"1,4", 0, 0, KVA_U32}}}, "of 8, 4 or 2 bits"},
    {{.op = KVA_OP_join_panels, .attrs = "columns=9", .in = {{"2,3,4"}}}, "as many panels"},
    {{.op = KVA_OP_join_panels, .attrs = "columns=9", .in = {{"2,4"}}}, "rank 3"},
    {{.op = KVA_OP_join_filters, .attrs = "filters=9", .in = {{"2,3,5,4"}}}, "as many panels"},
    {{.op = KVA_OP_join_filters, .attrs = "filters=9", .in = {{"3,5,4"}}}, "rank"},
    {{.op = KVA_OP_join_filters, .in = {{"3,2,5,4"}}}, "attribute filters is missing"},
    {{.op = KVA_OP_winograd_tiles, .in = {{"2,2,5,4"}}}, "an image as large as a filter"},
    {{.op = KVA_OP_winograd_tiles, .in = {{"2,H=5,5,4"}}}, "constant numbers of rows and columns"},
    {{.op = KVA_OP_winograd_tiles, .attrs = "pads=1,1", .in = {{"2,5,5,4"}}}, "pads must be none, or 4"},
    {{.op = KVA_OP_winograd_tiles, .attrs = "pads=-1,0,0,0", .in = {{"2,5,5,4"}}}, "pads must be none, or 4"},
    {{.op = KVA_OP_winograd_sums, .attrs = "rows=5; columns=4", .in = {{"2,1,72"}}}, "as many tiles"},
    {{.op = KVA_OP_winograd_sums, .attrs = "rows=4; columns=4", .in = {{"2,1,73"}}}, "36 places"},
    {{.op = KVA_OP_winograd_sums, .in = {{"2,1,72"}}}, "rows and columns must be positive"},
    {{.op = KVA_OP_gather_grad, .in = {{"3"}, {"3", 0, 0, KVA_I64}}}, "attribute extent is missing"},
    {{.op = KVA_OP_gather_grad, .attrs = "extent=4", .in = {{"3"}, {"2", 0, 0, KVA_I64}}},
     "differs from axis 0 of the indices"},
    {{.op = KVA_OP_gather_grad, .attrs = "extent=4", .in = {{"3"}, {"3", 0, 0, KVA_I64}, {"1,32", 0, 0, KVA_I32}}},
     "keys and bounds go together"},
    {{.op = KVA_OP_gather_grad,
      .attrs = "extent=4",
      .in = {{"3"}, {"3", 0, 0, KVA_I64}, {"1,32", 0, 0, KVA_I32}, {"2,4", 0, 0, KVA_I32}}},
     "operand 3: expected"},
    {{.op = KVA_OP_gather_grad,
      .attrs = "extent=4",
      .in = {{"3"}, {"3", 0, 0, KVA_I64}, {"1,32", 0, 0, KVA_I32}, {"1,1", 0, 0, KVA_I32}}},
     "operand 3: bounds of an owner are two or more"},
    {{.op = KVA_OP_sort_indices, .attrs = "extent=4", .in = {{"3"}}}, "expected indices of int32 or int64"},
    {{.op = KVA_OP_sort_indices, .in = {{"3", 0, 0, KVA_I64}}}, "attribute extent is missing"},
    {{.op = KVA_OP_sort_indices, .attrs = "extent=4; owners=0", .in = {{"3", 0, 0, KVA_I64}}},
     "owners = 0 must be positive"},
    {{.op = KVA_OP_gather_elements, .attrs = "axis=0", .in = {{"3,2"}, {"3,4", 0, 0, KVA_I64}}},
     "axis 1 is not provably within"},
    {{.op = KVA_OP_gather_nd, .in = {{"3,2"}, {"4,3", 0, 0, KVA_I64}}}, "indices of length 3 into 2 axes"},
    {{.op = KVA_OP_scatter_nd, .in = {{"3,2"}, {"4,1", 0, 0, KVA_I64}, {"4,3"}}}, "operand 2: expected float[4, 2]"},
    {{.op = KVA_OP_scatter_elements, .attrs = "reduction=mean", .in = {{"3"}, {"2", 0, 0, KVA_I64}, {"2"}}},
     "reduction \"mean\""},
    {{.op = KVA_OP_iota, .attrs = "shape=2; axis=1"}, "axis 1 is outside"},
    {{.op = KVA_OP_dims, .attrs = "values=2,3; scalar=1"}, "exactly one value"},
};

static void test_errors(void **state) {
  (void)state;
  int failures = 0;
  for (size_t i = 0; i < sizeof error_cases / sizeof error_cases[0]; i++) {
    const error_case *e = &error_cases[i];
    kva_case_built built;
    kva_status status = kva_case_build(&e->c, KVA_DTYPE_NONE, &built);
    const char *found = kva_diag_count(built.diag) ? kva_diag_message(built.diag, 0, NULL, NULL) : "no message";
    if (status == KVA_OK || kva_diag_count(built.diag) != 1 || !strstr(found, e->message)) {
      print_error("kv.%s <%s>: expected \"%s\", found \"%s\"\n", kva_ops.ops[e->c.op]->name,
                  e->c.attrs ? e->c.attrs : "", e->message, found);
      failures++;
    }
    kva_case_free(&built);
  }
  assert_int_equal(failures, 0);
}

/* After a failure the builder goes on with harmless values and stays quiet. */
static void test_failure_is_reported_once(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = kva_module_create(diag);
  kva_function *f = kva_function_create(m, "f");
  kva_builder b = {.m = m, .graph = f->graph};
  kva_dim two = kva_expr_const(m->exprs, 2), three = kva_expr_const(m->exprs, 3);
  kva_value *x = kva_graph_add_input(f->graph, kva_type_tensor(m, KVA_F32, 1, &two), "x");
  kva_value *y = kva_graph_add_input(f->graph, kva_type_tensor(m, KVA_F32, 1, &three), "y");
  kva_value *bad = kva_add(&b, x, y);
  assert_true(b.failed && bad->type != NULL);
  kva_value *worse = kva_matmul(&b, kva_reduce_to(&b, bad, y->type), kva_transpose(&b, y, (int64_t[]){0}), true, false);
  assert_non_null(worse->type);
  assert_int_equal(kva_diag_count(diag), 1);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_reduce_to(void **state) {
  (void)state;
  kva_module *m = kva_module_create(NULL);
  kva_function *f = kva_function_create(m, "f");
  kva_builder b = {.m = m, .graph = f->graph};
  kva_dim n = kva_expr_symbol(m->exprs, "N"), one = kva_expr_const(m->exprs, 1), three = kva_expr_const(m->exprs, 3);
  const kva_type *wide = kva_type_tensor(m, KVA_F32, 3, (kva_dim[]){three, n, three});
  const kva_type *narrow = kva_type_tensor(m, KVA_F32, 2, (kva_dim[]){one, three});
  kva_value *x = kva_graph_add_input(f->graph, wide, "x");
  assert_ptr_equal(kva_reduce_to(&b, x, narrow)->type, narrow);
  assert_ptr_equal(kva_reduce_to(&b, x, wide), x);
  assert_false(b.failed);
  kva_module_destroy(m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_errors),
      cmocka_unit_test(test_failure_is_reported_once),
      cmocka_unit_test(test_reduce_to),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
