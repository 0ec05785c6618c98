/* Bulk copies and tensor maps against naive copies, in the eager and the lazy model. */
#include "tests/ptxsim/ptx_test.h"

#include <math.h>

enum { ROWS = 5, COLUMNS = 48, PLANES = 3, BOX_ROWS = 8 };

/* One warp: lane 0 loads a box at (x, y, z) to shared memory, all lanes copy its %u bytes out as they lie there; then
 * lane 0 adds or stores the box to a second tensor at the same place. %s: rank, coordinates. */
static const char load_and_store[] = PTX_HEAD
    ".entry k(.param .u64 out, .param .u64 unused1, .param .u64 unused2, .param .align 64 .b8 map[128], .param .align "
    "64 "
    ".b8 to[128], .param .u32 x, .param .u32 y, .param .u32 z) {\n"
    ".reg .b32 %%r<20>; .reg .b64 %%d<20>; .reg .pred %%p<5>; .reg .f32 %%f<4>;\n"
    ".shared .align 1024 .b8 box[8192]; .shared .align 8 .b64 full;\n"
    "ld.param.u64 %%d1, [out]; ld.param.u32 %%r1, [x]; ld.param.u32 %%r2, [y]; ld.param.u32 %%r3, [z];\n"
    "mov.u64 %%d2, map; cvta.param.u64 %%d3, %%d2; mov.u64 %%d4, to; cvta.param.u64 %%d5, %%d4;\n"
    "mov.u32 %%r4, box; mov.u32 %%r5, full; mov.u32 %%r6, %%tid.x; setp.eq.u32 %%p1, %%r6, 0;\n"
    "@%%p1 mbarrier.init.shared.b64 [%%r5], 1; @%%p1 fence.proxy.async; prefetch.tensormap [%%d3]; bar.sync 0;\n"
    "@%%p1 mbarrier.arrive.expect_tx.shared.b64 %%d6, [%%r5], %u;\n"
    "@%%p1 cp.async.bulk.tensor.%ud.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%%r4], [%%d3, {%s}], "
    "[%%r5];\n"
    "W: mbarrier.try_wait.parity.shared.b64 %%p2, [%%r5], 0; @!%%p2 bra W;\n"
    "shl.b32 %%r7, %%r6, 2; cvt.u64.u32 %%d7, %%r7; add.s64 %%d7, %%d7, %%d1; add.u32 %%r8, %%r4, %%r7; mov.u32 %%r9, "
    "0;\n"
    "C: add.u32 %%r12, %%r7, %%r9; setp.ge.u32 %%p3, %%r12, %u; @%%p3 bra D;\n"
    "add.u32 %%r10, %%r8, %%r9; ld.shared.b32 %%r11, [%%r10]; st.global.b32 [%%d7], %%r11;\n"
    "add.u32 %%r9, %%r9, 128; add.s64 %%d7, %%d7, 128; bra C;\n"
    "D: bar.sync 0; @!%%p1 bra E;\n"
    "cp%s.async.bulk.tensor.%ud.global.shared::cta%s.tile.bulk_group [%%d5, {%s}], [%%r4];\n"
    "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; mbarrier.inval.shared.b64 [%%r5];\n"
    "E: ret; }\n";

typedef struct tensor_case {
  kva_dtype dtype;
  uint32_t rank, width, swizzle; /* width: elements of the box */
  int32_t at[3];
  bool add;
} tensor_case;

/* Where byte b of row r of the box is expected: pieces of 16 bytes change places within 8, 4 or 2 by their row. */
static size_t expected_place(const tensor_case *c, size_t row, size_t b, size_t width) {
  size_t line = (row * width + b) / 128, piece = b / 16;
  if (c->swizzle) piece ^= line % (c->swizzle / 16);
  return row * width + piece * 16 + b % 16;
}

static bool inside(const tensor_case *c, int64_t x, int64_t y, int64_t z) {
  return x >= 0 && x < COLUMNS && y >= 0 && y < ROWS && (c->rank < 3 ? z == 0 : z >= 0 && z < PLANES);
}

static void encode(const tensor_case *c, void *data, unsigned char *out) {
  uint64_t size = (uint64_t)kva_dtype_bits(c->dtype) / 8;
  kva_ptxsim_map map = {.dtype = c->dtype,
                        .rank = c->rank,
                        .address = data,
                        .dims = {COLUMNS, ROWS, PLANES},
                        .strides = {0, COLUMNS * size, ROWS * COLUMNS * size},
                        .box = {c->width, BOX_ROWS, 2},
                        .swizzle = c->swizzle};
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_ptxsim_encode_map(&map, diag, out);
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_diag_destroy(diag);
}

static void check_tensor(const tensor_case *c, bool lazy) {
  static unsigned char from[ROWS * COLUMNS * PLANES * 4] __attribute__((aligned(128)));
  static unsigned char to[sizeof from] __attribute__((aligned(128))), image[8192] __attribute__((aligned(16)));
  size_t size = (size_t)kva_dtype_bits(c->dtype) / 8, width = c->width * size;
  uint32_t n_planes = c->rank == 3 ? 2 : 1, n_rows = c->rank > 1 ? BOX_ROWS : 1,
           bytes = (uint32_t)width * n_rows * n_planes;
  for (int64_t k = 0; k < ROWS * COLUMNS * PLANES; k++) {
    kva_store_f64(c->dtype, from, k, (double)(k % 120));
    kva_store_f64(c->dtype, to, k, -5);
  }
  const char *coordinates[] = {"%r1", "%r1, %r2", "%r1, %r2, %r3"};
  kva_text text = {0};
  kva_text_add(&text, load_and_store, bytes, c->rank, coordinates[c->rank - 1], bytes, c->add ? ".reduce" : "", c->rank,
               c->add ? ".add" : "", coordinates[c->rank - 1]);
  kva_ptx_module *m = ptx_parse(text.data);
  unsigned char map[128], map_to[128];
  encode(c, from, map);
  encode(c, to, map_to);
  ptx_case run = {.block = {32, 1, 1},
                  .arrays = {image, from, to},
                  .sizes = {sizeof image, sizeof from, sizeof to},
                  .n_arrays = 3,
                  .scalars = {map, map_to, &c->at[0], &c->at[1], &c->at[2]},
                  .n_scalars = 5,
                  .options = {.lazy = lazy}};
  ptx_run_clean(m, &run);
  for (size_t r = 0; r < (size_t)n_rows * n_planes; r++)
    for (size_t x = 0; x < c->width; x++) {
      int64_t gx = c->at[0] + (int64_t)x, gy = c->rank > 1 ? c->at[1] + (int64_t)(r % n_rows) : 0;
      int64_t gz = c->rank > 2 ? c->at[2] + (int64_t)(r / n_rows) : 0, e = (gz * ROWS + gy) * COLUMNS + gx;
      double want = inside(c, gx, gy, gz) ? (double)(e % 120) : 0;
      double got = kva_load_f64(c->dtype, image + expected_place(c, r, x * size, width), 0);
      assert_true(got == want);
      if (inside(c, gx, gy, gz)) assert_true(kva_load_f64(c->dtype, to, e) == (c->add ? want - 5 : want));
    }
  int64_t changed = 0, written = 0;
  for (int64_t k = 0; k < ROWS * COLUMNS * PLANES; k++) changed += kva_load_f64(c->dtype, to, k) != -5;
  for (size_t r = 0; r < (size_t)n_rows * n_planes; r++)
    for (size_t x = 0; x < c->width; x++)
      written += inside(c, c->at[0] + (int64_t)x, c->rank > 1 ? c->at[1] + (int64_t)(r % n_rows) : 0,
                        c->rank > 2 ? c->at[2] + (int64_t)(r / n_rows) : 0);
  assert_true(changed <= written);
  kva_ptx_module_destroy(m);
  kva_text_free(&text);
}

static void tensors(void **state) {
  (void)state;
  static const tensor_case cases[] = {
      {KVA_F32, 1, 8, 0, {4, 0, 0}, false},     {KVA_F32, 2, 8, 0, {0, 0, 0}, false},
      {KVA_F32, 2, 32, 128, {16, -3, 0}, true}, {KVA_BF16, 2, 16, 32, {38, 1, 0}, false},
      {KVA_BF16, 2, 32, 64, {-8, 2, 0}, false}, {KVA_F32, 3, 16, 64, {-4, -2, 2}, true},
      {KVA_F32, 3, 8, 32, {44, 3, -1}, false},  {KVA_I8, 2, 16, 0, {40, 0, 0}, false},
      {KVA_F32, 2, 8, 0, {100, 100, 0}, false},
  };
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
    for (int lazy = 0; lazy < 2; lazy++) check_tensor(&cases[k], lazy);
}

/* cp.async.bulk there, cp.reduce.async.bulk back. */
static void plain_copies(void **state) {
  (void)state;
  kva_ptx_module *m = ptx_parse(
      PTX_HEAD
      ".entry k(.param .u64 in, .param .u64 out) { .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .pred %p<5>;\n"
      ".shared .align 128 .b8 box[1024]; .shared .align 8 .b64 full;\n"
      "ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r4, box; mov.u64 %d5, full;\n"
      "createpolicy.fractional.L2::evict_first.b64 %d6, 1.0;\n"
      "cvta.shared.u64 %d7, %d5; mbarrier.init.b64 [%d7], 2; fence.mbarrier_init.release.cluster;\n"
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%d5], 1024; mbarrier.arrive.release.cta.b64 %d8, [%d7], 2;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r4], [%d1], 512, [%d5], "
      "%d6;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4+512], [%d1+512], 512, [%d5];\n"
      "W: mbarrier.test_wait.acquire.cta.shared::cta.b64 %p2, [%d5], %d8; @!%p2 bra W;\n"
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d2], [%r4], 1008;\n"
      "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%d2+1008], [%r4+1008], 16, %d6;\n"
      "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }\n");
  for (int lazy = 0; lazy < 2; lazy++) {
    float in[256] __attribute__((aligned(16))), out[256] __attribute__((aligned(16)));
    for (int k = 0; k < 256; k++) in[k] = (float)k, out[k] = 0.5f;
    ptx_case c = {.block = {1, 1, 1},
                  .arrays = {in, out},
                  .sizes = {sizeof in, sizeof out},
                  .n_arrays = 2,
                  .options = {.lazy = lazy, .check_global = true}};
    ptx_run_clean(m, &c);
    for (int k = 0; k < 256; k++) assert_true(out[k] == (float)k + (k < 252 ? 0.5f : 0));
  }
  kva_ptx_module_destroy(m);
}

static void refuse(kva_ptxsim_map map, const char *reason) {
  unsigned char out[128];
  kva_diag *diag = kva_diag_create();
  assert_int_not_equal(kva_ptxsim_encode_map(&map, diag, out), KVA_OK);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), reason));
  kva_diag_destroy(diag);
}

static void bad_maps(void **state) {
  (void)state;
  static char data[64] __attribute__((aligned(16)));
  kva_ptxsim_map good = {.dtype = KVA_BF16,
                         .rank = 2,
                         .address = data,
                         .dims = {64, 4},
                         .strides = {2, 128},
                         .box = {64, 4},
                         .swizzle = 128},
                 m = good;
  m.rank = 6, refuse(m, "rank 6"), m = good;
  m.address = data + 8, refuse(m, "16 bytes"), m = good;
  m.dims[1] = 0, refuse(m, "0 elements"), m = good;
  m.strides[1] = 136, refuse(m, "136 bytes"), m = good;
  m.strides[1] = 0, refuse(m, "0 bytes; rows of 64 elements of bfloat16 would overlap"), m = good;
  m.strides[1] = 112, refuse(m, "would overlap"), m = good;
  m.box[1] = 257, refuse(m, "257 elements"), m = good;
  m.box[0] = 4, refuse(m, "8 bytes wide"), m = good;
  m.swizzle = 16, refuse(m, "16 bytes; 0, 32"), m = good;
  m.swizzle = 64, refuse(m, "128 bytes wide with a swizzle of 64"), m = good;
  m.dtype = KVA_I4, refuse(m, "1 to 8 bytes");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(tensors), cmocka_unit_test(plain_copies),
                                     cmocka_unit_test(bad_maps)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
