/* Encoding of kernels: each field that means something is part of it, and nothing else is. */
#include "tests/support/kernel_fixture.h"
#include "ir/dialect_nv.h"

#include <setjmp.h>
#include <cmocka.h>

static const char text[] = "kernel \"k\" (read float x[B*N], read float x_2[B*N], write float y[N], read int64 at[N]) "
                           "threads 64 blocks 2 {\n"
                           "  tensor_map x dims(64, N) steps(128) box(64, 8) swizzle 128\n"
                           "  shared readwrite float s[64]\n"
                           "  shared readwrite float t[32]\n"
                           "  shared readwrite float u[16] over s\n"
                           "  grid g < N {\n"
                           "    %0 = load at[g]\n"
                           "    thread r < 2 subgroup 32 stage {\n"
                           "      serial k < N carry (add float 0.0, max float 1.0) {\n"
                           "        %1 = load x[N*g + k*%0]\n"
                           "        %2 = mul %1, 2.0 : float\n"
                           "        %6 = narrow %2 : float16\n"
                           "        yield %1, %6\n"
                           "      }\n"
                           "      %3 = reduce k[0]\n"
                           "      %4 = lt %3, 1.0 : float\n"
                           "      thread m < 8 carry (add float 0.0) width 4 peel mod(g, 32) {\n"
                           "        %5 = load x_2[m]\n"
                           "        yield %5\n"
                           "      }\n"
                           "      if %4 {\n"
                           "        store y[g], %3\n"
                           "      } else {\n"
                           "        store s[r], 0.5\n"
                           "        store s[r + 2], 0.5\n"
                           "      }\n"
                           "    }\n"
                           "    thread z < 64 {\n"
                           "      copy_async s[4*z], x[4*g], 16\n"
                           "      copy_wait 2\n"
                           "    }\n"
                           "  }\n"
                           "}\n";

static kva_kernel *parse(kernel_fixture *f, const char *what) {
  kva_kernel *k = kva_kernel_parse(f->arena, f->exprs, what, "k.txt", f->diag);
  if (!k) kva_diag_print(f->diag, stderr);
  assert_non_null(k);
  return k;
}

static kva_kinstr *nth(const kva_kregion *r, kva_kop op, uint32_t n) {
  for (kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op == op && n-- == 0) return i;
  }
  fail_msg("no such instruction");
  return NULL;
}

/* Another value of a field makes another encoding, the old one the old. */
#define COUNTS(field, ...)                                                               \
  do {                                                                                   \
    __typeof__(field) old = (field);                                                     \
    (field) = __VA_ARGS__;                                                               \
    if (kernel_code_hash(k) == before) fail_msg("%s = %s: equal", #field, #__VA_ARGS__); \
    (field) = old;                                                                       \
    assert_true(kernel_code_hash(k) == before);                                          \
  } while (0)

static void kernel_and_buffers_count(void **state) {
  kernel_fixture *f = *state;
  kva_kernel *k = parse(f, text);
  uint64_t before = kernel_code_hash(k);
  const kva_expr *B = kva_expr_symbol(f->exprs, "B");
  kva_kbuf **bufs = k->bufs.data;
  COUNTS(k->threads, 128);
  COUNTS(k->blocks, 3);
  COUNTS(k->bufs.len, 6);
  COUNTS(bufs[0]->dtype, KVA_F16);
  COUNTS(bufs[0]->extent, B);
  COUNTS(bufs[0]->read, false);
  COUNTS(bufs[0]->written, true);
  COUNTS(bufs[4]->space, KVA_K_LOCAL);
  COUNTS(bufs[6]->over, bufs[5]);
  COUNTS(bufs[6]->over, NULL);
  kva_ktensor_map *map = k->maps.data;
  COUNTS(k->maps.len, 0);
  COUNTS(map->buf, bufs[1]);
  COUNTS(map->rank, 1);
  COUNTS(map->dims[1], B);
  COUNTS(map->strides[1], B);
  COUNTS(map->box[0], 32);
  COUNTS(map->swizzle, 64);
}

static void loops_count(void **state) {
  kernel_fixture *f = *state;
  kva_kernel *k = parse(f, text);
  uint64_t before = kernel_code_hash(k);
  const kva_expr *B = kva_expr_symbol(f->exprs, "B");
  kva_kloop *grid = k->loops.data[0], *groups = k->loops.data[1], *sums = k->loops.data[2], *lanes = k->loops.data[3];
  COUNTS(grid->kind, KVA_K_SERIAL);
  COUNTS(grid->extent, B);
  COUNTS(groups->subgroup, 16);
  COUNTS(groups->stage, false);
  COUNTS(lanes->width, 2);
  COUNTS(lanes->peel, B);
  COUNTS(lanes->peel, NULL);
  COUNTS(lanes->blocks, 2);
  COUNTS(sums->strict_order, true);
  kva_kcarry *carry = sums->carries.data;
  COUNTS(sums->carries.len, 1);
  COUNTS(carry[0].combine, KVA_COMBINE_MUL);
  COUNTS(carry[0].dtype, KVA_F64);
  COUNTS(carry[0].init, carry[1].init);
  COUNTS(carry[0].yield, carry[1].yield);
}

static void instructions_count(void **state) {
  kernel_fixture *f = *state;
  kva_kernel *k = parse(f, text);
  uint64_t before = kernel_code_hash(k);
  const kva_expr *B = kva_expr_symbol(f->exprs, "B");
  const kva_kloop *sums = k->loops.data[2];
  kva_kinstr *load = sums->body->first, *reduce = nth(k->loops.data[1]->body, KVA_K_REDUCE, 0);
  kva_kinstr *mul = nth(sums->body, KVA_K_mul, 0), *branch = nth(k->loops.data[1]->body, KVA_K_IF, 0);
  COUNTS(mul->op, KVA_K_add);
  COUNTS(mul->dtype, KVA_F64);
  COUNTS(mul->n_args, 1);
  COUNTS(mul->args[0], mul->args[1]);
  COUNTS(mul->args[1]->imm.f, 3);
  COUNTS(nth(sums->body, KVA_K_NARROW, 0)->imm.i, KVA_BF16);
  COUNTS(mul->args[1]->dtype, KVA_F64);
  COUNTS(load->index, B);
  COUNTS(load->buf, k->bufs.data[1]);
  COUNTS(load->imm.i, 64);
  COUNTS(reduce->carry, 1);
  COUNTS(reduce->loop, k->loops.data[3]);
  COUNTS(branch->then->first, NULL);
  COUNTS(branch->orelse->first->next, NULL);
  kva_kregion *then = branch->then;
  branch->then = branch->orelse;
  branch->orelse = then;
  assert_true(kernel_code_hash(k) != before);
  branch->orelse = branch->then;
  branch->then = then;
  kva_kintrinsic *copy = nth(k->loops.data[4]->body, KVA_K_INTRINSIC, 0)->intrinsic;
  kva_kintrinsic *wait = nth(k->loops.data[4]->body, KVA_K_INTRINSIC, 1)->intrinsic;
  COUNTS(copy->op, KVA_NV_copy_commit);
  COUNTS(copy->places[0].buf, k->bufs.data[5]);
  COUNTS(copy->places[1].index, B);
  COUNTS(copy->indices[0], B);
  COUNTS(wait->numbers[0], 1);
}

/* Generated code relies on ranges: an index that may be negative is divided in another way. */
static void ranges_count(void **state) {
  kernel_fixture *f = *state;
  kva_kernel *k = parse(f, text);
  uint64_t before = kernel_code_hash(k);
  kva_expr *value = (kva_expr *)(uintptr_t)k->value_symbols.data[0];
  kva_expr *variable = (kva_expr *)(uintptr_t)k->loops.data[2]->var;
  COUNTS(value->lo, 0);
  COUNTS(value->extent, kva_expr_symbol(f->exprs, "N"));
  COUNTS(variable->lo, -1);
  COUNTS(variable->extent, kva_expr_symbol(f->exprs, "B"));
}

static const char order[] = "kernel \"a\" (read float x[B*N], write float y[N]) {\n"
                            "  parallel i < N {\n"
                            "    serial j < B {\n"
                            "      %0 = load x[B*i*j + 2*i + max(i, j) + min(3*j, i)]\n"
                            "      store y[i], %0\n"
                            "    }\n"
                            "  }\n"
                            "}\n";

/* The same kernel where terms, factors and operands of max stand in another order: ids follow first use. */
static void names_ids_and_order_do_not_count(void **state) {
  kernel_fixture *f = *state;
  kva_kernel *k = parse(f, order);
  uint64_t before = kernel_code_hash(k);
  kva_expr_ctx *other = kva_expr_ctx_create(f->arena);
  static const char same[] = "kernel \"b\" (read float p[N*B], write float q[N]) {\n"
                             "  parallel j < N {\n"
                             "    serial i < B {\n"
                             "      %7 = load p[min(j, 3*i) + max(i, j) + 2*j + i*B*j]\n"
                             "      store q[j], %7\n"
                             "    }\n"
                             "  }\n"
                             "}\n";
  kva_expr_symbol(other, "N"); /* numbered before B */
  const kva_kernel *renamed = kva_kernel_parse(f->arena, other, same, "k.txt", f->diag);
  assert_non_null(renamed);
  assert_true(kernel_code_hash(renamed) == before);
  k->name = "c";
  k->bufs.data[0]->name = "z";
  k->loops.data[1]->body->first->id = 1000;
  assert_true(kernel_code_hash(k) == before);
}

/* Sums of products with the same numbers in other places. */
static void places_of_coefficients_count(void **state) {
  kernel_fixture *f = *state;
  static const char *const indices[] = {"2*i + 3*j",     "3*i + 2*j",     "i*i + j*j", "i*j + i*j",
                                        "2*i*i + 3*j",   "2*i + 3*j*j",   "min(i, j)", "max(i, j)",
                                        "mod(i + 8, B)", "mod(B, i + 8)", "-2*i - 3*j"};
  enum { N = sizeof indices / sizeof *indices };
  uint64_t codes[N];
  for (size_t n = 0; n < N; n++) {
    kva_text kernel = {0};
    kva_text_add(&kernel, "kernel \"a\" (write float y[N]) { parallel i < N { parallel j < B { store y[%s], 1.0 } } }",
                 indices[n]);
    codes[n] = kernel_code_hash(parse(f, kernel.data));
    for (size_t m = 0; m < n; m++)
      if (codes[m] == codes[n]) fail_msg("%s and %s", indices[m], indices[n]);
    kva_text_free(&kernel);
  }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, kernel_fixture_create, kernel_fixture_destroy)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(kernel_and_buffers_count),
      TEST(loops_count),
      TEST(instructions_count),
      TEST(ranges_count),
      TEST(names_ids_and_order_do_not_count),
      TEST(places_of_coefficients_count),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
