/* Property: items that are alive together never overlap; and the plan is tight, deterministic and checked. */
#include "runtime/memory_plan.h"

#include "runtime/base/platform.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static kva_lifetime *scratch[1000];

static int64_t padded(const kva_lifetime *x) {
  return (x->bytes + KVA_ALIGNMENT - 1) / KVA_ALIGNMENT * KVA_ALIGNMENT;
}

static uint32_t random_below(uint64_t *counter, uint32_t n) {
  return kva_philox4x32((*counter)++, 0, 42).v[0] % n;
}

static void check_no_overlap(int n, const kva_lifetime *items, int64_t bytes) {
  for (int i = 0; i < n; i++) {
    assert_int_equal(items[i].offset % KVA_ALIGNMENT, 0);
    assert_true(items[i].offset >= 0 && items[i].offset + items[i].bytes <= bytes);
    for (int j = 0; j < i; j++) {
      if (items[i].first > items[j].last || items[j].first > items[i].last) continue;
      assert_true(items[i].offset + items[i].bytes <= items[j].offset ||
                  items[j].offset + items[j].bytes <= items[i].offset || !items[i].bytes || !items[j].bytes);
    }
  }
}

/* The largest sum of sizes alive at one step: no plan can be smaller. */
static int64_t lower_bound(int n, const kva_lifetime *items, int steps) {
  int64_t best = 0;
  for (int s = 0; s < steps; s++) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
      if (items[i].first <= s && s <= items[i].last) sum += padded(&items[i]);
    if (sum > best) best = sum;
  }
  return best;
}

static void random_plans_never_overlap(void **unused) {
  (void)unused;
  enum { MAX = 150, STEPS = 60 };
  uint64_t counter = 0;
  double bytes_sum = 0, bound_sum = 0;
  for (int round = 0; round < 200; round++) {
    kva_lifetime items[MAX], again[MAX];
    int n = (int)random_below(&counter, MAX);
    for (int i = 0; i < n; i++) {
      int32_t first = (int32_t)random_below(&counter, STEPS);
      int32_t last = first + (int32_t)random_below(&counter, random_below(&counter, 4) ? 4 : STEPS);
      items[i] = (kva_lifetime){.bytes = random_below(&counter, random_below(&counter, 3) ? 5000 : 3),
                                .first = first,
                                .last = last < STEPS ? last : STEPS - 1};
    }
    memcpy(again, items, sizeof items);
    int64_t bytes, bytes_again;
    assert_int_equal(kva_plan_memory(n, items, scratch, &bytes), KVA_OK);
    assert_int_equal(kva_plan_memory(n, again, scratch, &bytes_again), KVA_OK);
    check_no_overlap(n, items, bytes);
    assert_int_equal(bytes, bytes_again);
    for (int i = 0; i < n; i++) assert_int_equal(items[i].offset, again[i].offset);
    int64_t bound = lower_bound(n, items, STEPS);
    assert_true(bytes >= bound);
    bytes_sum += (double)bytes;
    bound_sum += (double)bound;
  }
  assert_true(bytes_sum < 1.02 * bound_sum);
}

static void a_chain_needs_two_buffers(void **unused) {
  (void)unused;
  kva_lifetime chain[20];
  for (int i = 0; i < 20; i++) chain[i] = (kva_lifetime){.bytes = 1000, .first = i, .last = i + 1};
  int64_t bytes;
  assert_int_equal(kva_plan_memory(20, chain, scratch, &bytes), KVA_OK);
  assert_int_equal(bytes, 2 * 1024);
  assert_int_equal(kva_plan_memory(0, NULL, scratch, &bytes), KVA_OK);
  assert_int_equal(bytes, 0);
}

/* The tightest gap is taken: c fits the gaps left by two dead neighbours and must choose the smaller. */
static void best_fit_takes_the_tightest_gap(void **unused) {
  (void)unused;
  kva_lifetime items[] = {
      {.bytes = 8192, .first = 0, .last = 9}, {.bytes = 4096, .first = 0, .last = 0},
      {.bytes = 2048, .first = 0, .last = 9}, {.bytes = 1024, .first = 0, .last = 0},
      {.bytes = 512, .first = 0, .last = 9},  {.bytes = 256, .first = 5, .last = 6},
  };
  int64_t bytes;
  assert_int_equal(kva_plan_memory(6, items, scratch, &bytes), KVA_OK);
  assert_int_equal(items[5].offset, items[3].offset);
}

static void overflow_is_no_memory(void **unused) {
  (void)unused;
  kva_lifetime items[] = {{.bytes = INT64_MAX - 100, .first = 0, .last = 1}, {.bytes = 200, .first = 5, .last = 6}};
  int64_t bytes;
  assert_int_equal(kva_plan_memory(2, items, scratch, &bytes), KVA_NO_MEMORY);
  items[0].bytes = INT64_MAX;
  assert_int_equal(kva_plan_memory(1, items, scratch, &bytes), KVA_NO_MEMORY);
}

static void blocks_are_zeroed_and_aligned(void **unused) {
  (void)unused;
  const int64_t sizes[] = {1, 4096, (4 << 20) - 1, 4 << 20, (9 << 20) + 5};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    kva_block block;
    assert_int_equal(kva_block_create(sizes[i], &block), KVA_OK);
    assert_int_equal((uintptr_t)block.data % (sizes[i] >= 4 << 20 ? 2 << 20 : KVA_ALIGNMENT), 0);
    char *data = block.data;
    assert_int_equal(data[0] | data[sizes[i] / 2] | data[sizes[i] - 1], 0);
    memset(data, 1, (size_t)sizes[i]);
    kva_block_destroy(&block);
    assert_null(block.data);
  }
  kva_block block;
  assert_int_equal(kva_block_create(0, &block), KVA_OK);
  assert_null(block.data);
  assert_int_equal(kva_block_create((int64_t)1 << 60, &block), KVA_NO_MEMORY);
  assert_int_equal(kva_block_create(INT64_MAX, &block), KVA_NO_MEMORY);
  kva_block_destroy(&block);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_plans_never_overlap),      cmocka_unit_test(a_chain_needs_two_buffers),
      cmocka_unit_test(best_fit_takes_the_tightest_gap), cmocka_unit_test(overflow_is_no_memory),
      cmocka_unit_test(blocks_are_zeroed_and_aligned),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
