/* Prints a model's results to the bit; the same file for every form. */
#include "mlp.h"

#include <stdio.h>

#ifdef WITH_M
int of_m(void);
#else
static int of_m(void) {
  return 42;
}
#endif

int main(void) {
  mlp_context *model;
  char message[256];
  if (mlp_create(NULL, &model, message, sizeof message)) {
    fprintf(stderr, "forms: %s\n", message);
    return 1;
  }
  const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6};
  mlp_forward_out out = {NULL};
  if (mlp_forward(model, &(mlp_forward_in){tokens}, &out, &(mlp_dims){.B = 2, .T = 4})) {
    fprintf(stderr, "forms: %s\n", mlp_error(model));
    return 1;
  }
  for (int i = 0; i < 2 * 4 * 256; i += 97) printf("%a\n", out.logits[i]);
  printf("%d\n", of_m());
  mlp_destroy(model);
  return 0;
}
