/* Results of the reference against values worked out by hand: the corners of each operator's definition. */
#include "tools/verify/cases.h"
#include "ops/ids.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

KVA_OP_FUNCTIONS(reduce_max)

typedef struct value_case {
  kva_case c;
  const char *expected; /* result 0 */
} value_case;

static const value_case value_cases[] = {
    {{.op = KVA_OP_round, .in = {{"6", 0, 0, 0, "0.5,1.5,2.5,-0.5,-1.5,-2.7"}}}, "0,2,2,0,-2,-3"},
    {{.op = KVA_OP_sign, .in = {{"4", 0, 0, 0, "-3,0,5,nan"}}}, "-1,0,1,nan"},
    {{.op = KVA_OP_relu, .in = {{"3", 0, 0, 0, "-3,nan,5"}}}, "0,nan,5"},
    {{.op = KVA_OP_relu, .dtype = KVA_U64, .in = {{"2", 0, 0, 0, "-1,5"}}}, "-1,5"}, /* 2^64 - 1 is positive */
    {{.op = KVA_OP_neg, .dtype = KVA_I8, .in = {{"3", 0, 0, 0, "-128,1,0"}}}, "-128,-1,0"},
    {{.op = KVA_OP_abs, .dtype = KVA_I8, .in = {{"3", 0, 0, 0, "-128,-1,7"}}}, "-128,1,7"},
    {{.op = KVA_OP_is_inf, .attrs = "detect_positive=0", .in = {{"3", 0, 0, 0, "inf,-inf,nan"}}}, "0,1,0"},
    {{.op = KVA_OP_bit_not, .dtype = KVA_U8, .in = {{"2", 0, 0, 0, "0,5"}}}, "255,250"},
    {{.op = KVA_OP_cast, .attrs = "to=int8", .in = {{"6", 0, 0, 0, "-1.9,1.9,nan,300,-300,inf"}}},
     "-1,1,0,127,-128,127"},
    {{.op = KVA_OP_cast, .attrs = "to=int8", .dtype = KVA_I32, .in = {{"2", 0, 0, 0, "300,-129"}}}, "44,127"},
    {{.op = KVA_OP_cast, .attrs = "to=int4", .in = {{"4", 0, 0, 0, "9,-9,3.7,-0.5"}}}, "7,-8,3,0"},
    {{.op = KVA_OP_cast, .attrs = "to=bool", .in = {{"4", 0, 0, 0, "0,-0,0.25,nan"}}}, "0,0,1,1"},
    {{.op = KVA_OP_cast, .attrs = "to=bfloat16", .in = {{"2", 0, 0, 0, "1.00390625,1.01171875"}}}, "1,1.015625"},
    {{.op = KVA_OP_cast, .attrs = "to=float8e4m3fn", .in = {{"3", 0, 0, 0, "464,1000,-17"}}}, "448,448,-16"},
    {{.op = KVA_OP_cast, .attrs = "to=float8e4m3fn; saturate=0", .in = {{"3", 0, 0, 0, "464,1000,2"}}}, "448,nan,2"},
    {{.op = KVA_OP_cast, .attrs = "to=float8e5m2; saturate=0", .in = {{"2", 0, 0, 0, "1e6,-1e6"}}}, "inf,-inf"},
    {{.op = KVA_OP_cast, .attrs = "to=float", .dtype = KVA_U64, .in = {{"1", 0, 0, 0, "-1"}}}, "1.8446744073709552e19"},
    {{.op = KVA_OP_bitcast, .attrs = "to=int32", .in = {{"2", 0, 0, 0, "1,-2"}}}, "1065353216,-1073741824"},
    {{.op = KVA_OP_add, .dtype = KVA_I8, .in = {{"2", 0, 0, 0, "127,-1"}, {"", 1, 1}}}, "-128,0"},
    {{.op = KVA_OP_div,
      .dtype = KVA_I32,
      .in = {{"5", 0, 0, 0, "7,-7,7,5,-2147483648"}, {"5", 0, 0, 0, "2,2,-2,0,-1"}}},
     "3,-3,-3,0,-2147483648"},
    {{.op = KVA_OP_mod, .dtype = KVA_I32, .in = {{"4", 0, 0, 0, "7,-7,7,-7"}, {"4", 0, 0, 0, "3,3,-3,-3"}}},
     "1,2,-2,-1"},
    {{.op = KVA_OP_mod,
      .attrs = "fmod=1",
      .dtype = KVA_I32,
      .in = {{"4", 0, 0, 0, "7,-7,7,-7"}, {"4", 0, 0, 0, "3,3,-3,-3"}}},
     "1,-1,1,-1"},
    {{.op = KVA_OP_mod, .attrs = "fmod=1", .in = {{"2", 0, 0, 0, "-4.5,5.25"}, {"2", 0, 0, 0, "2,-2"}}}, "-0.5,1.25"},
    {{.op = KVA_OP_pow, .dtype = KVA_I32, .in = {{"6", 0, 0, 0, "2,-3,2,-1,1,10"}, {"6", 0, 0, 0, "10,3,-1,-3,-5,10"}}},
     "1024,-27,0,-1,1,1410065408"},
    {{.op = KVA_OP_max, .in = {{"3", 0, 0, 0, "nan,1,2"}, {"3", 0, 0, 0, "1,nan,3"}}}, "nan,nan,3"},
    {{.op = KVA_OP_min, .dtype = KVA_U64, .in = {{"2", 0, 0, 0, "-1,3"}, {"2", 0, 0, 0, "5,-2"}}}, "5,3"},
    {{.op = KVA_OP_less, .dtype = KVA_U64, .in = {{"2", 0, 0, 0, "-1,3"}, {"2", 0, 0, 0, "5,-2"}}}, "0,1"},
    {{.op = KVA_OP_equal, .in = {{"2", 0, 0, 0, "nan,0"}, {"2", 0, 0, 0, "nan,-0"}}}, "0,1"},
    {{.op = KVA_OP_bit_shift,
      .attrs = "left=0",
      .dtype = KVA_I8,
      .in = {{"4", 0, 0, 0, "-128,-5,-1,64"}, {"4", 0, 0, 0, "7,1,8,-1"}}},
     "-1,-3,-1,0"},
    {{.op = KVA_OP_bit_shift, .dtype = KVA_U8, .in = {{"3", 0, 0, 0, "255,1,1"}, {"3", 0, 0, 0, "4,7,8"}}},
     "240,128,0"},
    {{.op = KVA_OP_where, .in = {{"2,1", 0, 0, KVA_BOOL, "1,0"}, {"2", 0, 0, 0, "1,2"}, {"", 9, 9}}}, "1,2,9,9"},
    {{.op = KVA_OP_reduce_sum, .attrs = "axes=0", .in = {{"2,2", 0, 0, 0, "1,2,3,4"}}}, "4,6"},
    {{.op = KVA_OP_reduce_sum, .dtype = KVA_U8, .in = {{"3", 0, 0, 0, "100,100,100"}}}, "44"},
    {{.op = KVA_OP_reduce_mean, .in = {{"4", 0, 0, 0, "1,2,3,6"}}}, "3"},
    {{.op = KVA_OP_reduce_max, .in = {{"N=0"}}}, "-inf"},
    {{.op = KVA_OP_reduce_min, .dtype = KVA_I8, .in = {{"N=0"}}}, "127"},
    {{.op = KVA_OP_reduce_prod, .in = {{"N=0"}}}, "1"},
    {{.op = KVA_OP_reduce_max, .in = {{"3", 0, 0, 0, "1,nan,2"}}}, "nan"},
    {{.op = KVA_OP_argmax, .in = {{"5", 0, 0, 0, "1,3,2,3,0"}}}, "1"},
    {{.op = KVA_OP_top_k, .attrs = "count=4", .in = {{"6", 0, 0, 0, "1,3,nan,3,inf,0"}}}, "2,4,1,3"},
    {{.op = KVA_OP_top_k, .attrs = "count=3; smallest=1", .in = {{"5", 0, 0, 0, "1,nan,0,-1,0"}}}, "3,2,4"},
    {{.op = KVA_OP_argmax, .attrs = "select_last=1", .in = {{"5", 0, 0, 0, "1,3,2,3,0"}}}, "3"},
    {{.op = KVA_OP_argmin, .in = {{"4", 0, 0, 0, "1,nan,-2,nan"}}}, "1"},
    {{.op = KVA_OP_cumsum, .in = {{"4", 0, 0, 0, "1,2,3,4"}}}, "1,3,6,10"},
    {{.op = KVA_OP_cumsum, .attrs = "exclusive=1; reverse=1", .in = {{"4", 0, 0, 0, "1,2,3,4"}}}, "9,7,4,0"},
    {{.op = KVA_OP_cumprod, .attrs = "exclusive=1", .in = {{"4", 0, 0, 0, "1,2,3,4"}}}, "1,1,2,6"},
    {{.op = KVA_OP_transpose, .attrs = "perm=2,0,1", .in = {{"2,1,3", 0, 0, 0, "0,1,2,3,4,5"}}}, "0,3,1,4,2,5"},
    {{.op = KVA_OP_slice, .attrs = "starts=4; shape=3; steps=-2", .in = {{"5", 0, 0, 0, "0,1,2,3,4"}}}, "4,2,0"},
    {{.op = KVA_OP_pad, .attrs = "before=3; after=3; mode=reflect", .in = {{"3", 0, 0, 0, "1,2,3"}}},
     "2,3,2,1,2,3,2,1,2"},
    {{.op = KVA_OP_pad, .attrs = "before=2; after=1; mode=wrap", .in = {{"3", 0, 0, 0, "1,2,3"}}}, "2,3,1,2,3,1"},
    {{.op = KVA_OP_pad, .attrs = "before=-1; after=2; mode=edge", .in = {{"3", 0, 0, 0, "1,2,3"}}}, "2,3,3,3"},
    {{.op = KVA_OP_pad, .attrs = "before=1; after=-1", .in = {{"3", 0, 0, 0, "1,2,3"}, {"", 7, 7}}}, "7,1,2"},
    {{.op = KVA_OP_concat, .attrs = "axis=1", .in = {{"2,1", 0, 0, 0, "1,2"}, {"2,2", 0, 0, 0, "3,4,5,6"}}},
     "1,3,4,2,5,6"},
    {{.op = KVA_OP_gather, .attrs = "axis=1", .in = {{"2,3", 0, 0, 0, "0,1,2,3,4,5"}, {"2", 0, 0, KVA_I64, "-1,0"}}},
     "2,0,5,3"},
    {{.op = KVA_OP_gather_grad, .attrs = "extent=3", .in = {{"3", 0, 0, 0, "1,2,4"}, {"3", 0, 0, KVA_I64, "2,0,-1"}}},
     "2,0,5"},
    {{.op = KVA_OP_sort_indices, .attrs = "extent=3", .in = {{"3", 0, 0, KVA_I64, "2,0,-1"}}},
     "1,64,66,99,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119"
     ",120,121,122,123,124,125,126,127"},
    {{.op = KVA_OP_gather_elements,
      .attrs = "axis=0",
      .in = {{"2,2", 0, 0, 0, "1,2,3,4"}, {"1,2", 0, 0, KVA_I64, "1,0"}}},
     "3,2"},
    {{.op = KVA_OP_gather_nd, .in = {{"2,2", 0, 0, 0, "1,2,3,4"}, {"2,2", 0, 0, KVA_I64, "0,1,-1,0"}}}, "2,3"},
    {{.op = KVA_OP_gather_nd,
      .attrs = "batch_dims=1",
      .in = {{"2,2", 0, 0, 0, "1,2,3,4"}, {"2,1", 0, 0, KVA_I64, "1,0"}}},
     "2,3"},
    {{.op = KVA_OP_scatter_elements,
      .in = {{"3", 0, 0, 0, "1,2,3"}, {"2", 0, 0, KVA_I64, "1,1"}, {"2", 0, 0, 0, "8,9"}}},
     "1,9,3"},
    {{.op = KVA_OP_scatter_elements,
      .attrs = "reduction=mul",
      .in = {{"3", 0, 0, 0, "1,2,3"}, {"2", 0, 0, KVA_I64, "1,1"}, {"2", 0, 0, 0, "8,9"}}},
     "1,144,3"},
    {{.op = KVA_OP_scatter_nd,
      .attrs = "reduction=add",
      .in = {{"2,2", 0, 0, 0, "1,2,3,4"}, {"2,1", 0, 0, KVA_I64, "1,-1"}, {"2,2", 0, 0, 0, "10,20,30,40"}}},
     "1,2,43,64"},
    {{.op = KVA_OP_dims, .attrs = "values=3,4"}, "3,4"},
    {{.op = KVA_OP_iota, .attrs = "shape=2,3; axis=-1"}, "0,1,2,0,1,2"},
};

static bool matches(const kva_ref_tensor *w, int64_t i, const char **s) {
  char *end;
  double expected = strtod(*s, &end), found = kva_ref_tensor_get(w, i);
  *s = *end == ',' ? end + 1 : end;
  return isnan(expected) ? isnan(found) : expected == found;
}

static int check(const value_case *v) {
  kva_case_built built;
  kva_ref_tensor *out[4] = {0};
  bool ok =
      kva_case_build(&v->c, KVA_DTYPE_NONE, &built) == KVA_OK &&
      kva_run_reference(NULL, built.m, built.f, (const kva_ref_tensor *const *)built.inputs, out, built.diag) == KVA_OK;
  if (!ok) kva_diag_print(built.diag, stderr);
  const char *s = v->expected;
  for (int64_t i = 0; ok && i < out[0]->n; i++) {
    ok = *s && matches(out[0], i, &s);
    if (!ok) print_error("element %lld is %g\n", (long long)i, kva_ref_tensor_get(out[0], i));
  }
  ok = ok && !*s;
  for (int i = 0; i < 4; i++) kva_ref_tensor_free(out[i]);
  kva_case_free(&built);
  return !ok;
}

static void test_values(void **state) {
  (void)state;
  int failures = 0;
  for (size_t i = 0; i < sizeof value_cases / sizeof value_cases[0]; i++) {
    int failed = check(&value_cases[i]);
    if (!failed) continue;
    const kva_case *c = &value_cases[i].c;
    print_error("kv.%s <%s>: expected %s\n", kva_ops.ops[c->op]->name, c->attrs ? c->attrs : "",
                value_cases[i].expected);
    failures++;
  }
  assert_int_equal(failures, 0);
}

/* The derivative at points where it is a convention. */
static void test_gradient_conventions(void **state) {
  (void)state;
  kva_case ties = {.op = KVA_OP_reduce_max, .in = {{"4", 0, 0, 0, "1,3,3,0"}}};
  kva_case_built built;
  assert_int_equal(kva_case_build(&ties, KVA_F64, &built), KVA_OK);
  kva_module *m = built.m;
  kva_function *f = kva_function_create(m, "gradient");
  kva_builder b = {.m = m, .graph = f->graph};
  kva_value *x = kva_graph_add_input(f->graph, built.node->operands[0].value->type, "x");
  kva_node *n = kva_build_node(&b, KVA_OP_reduce_max, 1, &x, 1, NULL);
  kva_value *seed = kva_expand_like(&b, kva_const_scalar(&b, KVA_F64, 6), n->results[0].type), *gradient = NULL;
  kva_vjp c = {.b = &b, .grad_out = &seed, .grad_in = &gradient, .wants = (bool[]){true}};
  assert_int_equal(kva_reduce_max_vjp(&c, n), KVA_OK);
  kva_build_node(&b, KVA_OP_return, 1, &gradient, 0, NULL);
  kva_ref_tensor *out[1];
  assert_int_equal(kva_run_reference(NULL, m, f, (const kva_ref_tensor *const *)built.inputs, out, built.diag), KVA_OK);
  double expected[4] = {0, 3, 3, 0};
  assert_memory_equal(out[0]->f, expected, sizeof expected);
  kva_ref_tensor_free(out[0]);
  kva_case_free(&built);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_gradient_conventions)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
