/* A model whose sizes depend on data, called from C: prints what it found, twice, for inputs of other values. */
#include "sizes.h"

#include <stdio.h>

static int run(sizes_context *c, const float *x, int64_t n, int64_t length) {
  const sizes_forward_in in = {x, &n};
  sizes_forward_out out = {NULL, NULL, NULL};
  sizes_dims dims = {.N = length};
  if (sizes_forward(c, &in, &out, &dims)) {
    fprintf(stderr, "%s\n", sizes_error(c));
    return 1;
  }
  sizes_forward_dims(c, &dims);
  printf("%lld %lld %lld:", (long long)dims.K, (long long)dims.S, (long long)dims.M);
  for (int64_t i = 0; i < dims.K; i++) printf(" %g", out.values[i]);
  for (int64_t i = 0; i < dims.S; i++) printf(" %g", out.sums[i]);
  for (int64_t i = 0; i < dims.M; i++) printf(" %g", out.some[i]);
  printf("\n");
  return sizes_forward_values_bytes(&dims) != dims.K * 4;
}

int main(void) {
  const float first[] = {1, 0, 2, 0, 3}, second[] = {0, 0, 0, 5};
  sizes_context *c;
  char message[256];
  if (sizes_create(NULL, &c, message, sizeof message)) return 1;
  int failed = run(c, first, 2, 5) || run(c, second, 4, 4);
  sizes_destroy(c);
  return failed;
}
