/* Two models in one program: all symbols exported by a compiled model begin with its prefix. */
#include "lm.h"
#include "mlp.h"

#include <stdio.h>

enum { LONGEST = 20 };

static double sum(const float *v, int64_t bytes) {
  double total = 0;
  for (int64_t i = 0; i < bytes / (int64_t)sizeof *v; i++) total += v[i];
  return total;
}

int main(void) {
  lm_context *lm;
  mlp_context *mlp;
  if (lm_create(NULL, &lm, NULL, 0) || mlp_create(NULL, &mlp, NULL, 0)) return 1;
  int32_t tokens[LONGEST];
  for (int i = 0; i < LONGEST; i++) tokens[i] = i * i % 256;
  for (int length = 5; length <= LONGEST; length += 5) { /* one artefact serves all values of its symbols */
    const lm_dims lm_dims_now = {.B = 1, .T = length};
    const mlp_dims mlp_dims_now = {.B = 1, .T = length};
    lm_forward_out a = {NULL};
    mlp_forward_out b = {NULL};
    if (lm_forward(lm, &(lm_forward_in){tokens}, &a, &lm_dims_now)) return 1;
    if (mlp_forward(mlp, &(mlp_forward_in){tokens}, &b, &mlp_dims_now)) return 1;
    printf("%d %.9g %.9g\n", length, sum(a.logits, lm_forward_logits_bytes(&lm_dims_now)),
           sum(b.logits, mlp_forward_logits_bytes(&mlp_dims_now)));
  }
  lm_destroy(lm);
  mlp_destroy(mlp);
  return 0;
}
