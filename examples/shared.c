/* A model as a shared library, loaded at run time: shared ./lm.so [TOKENS.raw LOGITS.raw LENGTH] runs it on int32
 * tokens of a file and writes the logits. The program links nothing of Kvasir. */
#include "lm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *function(void *library, const char *name) {
  void *f = dlsym(library, name);
  if (!f) {
    fprintf(stderr, "shared: %s\n", dlerror());
    exit(1);
  }
  return f;
}

static int32_t *read_tokens(const char *path, int length) {
  int32_t *tokens = calloc((size_t)length, sizeof *tokens);
  FILE *file = path ? fopen(path, "rb") : NULL;
  if (path && (!file || fread(tokens, sizeof *tokens, (size_t)length, file) != (size_t)length)) exit(1);
  if (file) fclose(file);
  return tokens;
}

int main(int argc, char **argv) {
  void *library = dlopen(argc > 1 ? argv[1] : "./lm.so", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "shared: %s\n", dlerror());
    return 1;
  }
  __typeof__(&lm_create) create = function(library, "lm_create");
  __typeof__(&lm_forward) forward = function(library, "lm_forward");
  __typeof__(&lm_destroy) destroy = function(library, "lm_destroy");
  lm_context *model;
  if (create(NULL, &model, NULL, 0)) return 1;
  int length = argc > 4 ? atoi(argv[4]) : 8;
  int32_t *tokens = read_tokens(argc > 4 ? argv[2] : NULL, length);
  const lm_dims dims = {.B = 1, .T = length};
  lm_forward_out out = {NULL};
  if (forward(model, &(lm_forward_in){tokens}, &out, &dims)) return 1;
  printf("first logit %.9g\n", out.logits[0]);
  FILE *file = argc > 4 ? fopen(argv[3], "wb") : NULL;
  if (file) fwrite(out.logits, 1, (size_t)lm_forward_logits_bytes(&dims), file);
  if (file) fclose(file);
  destroy(model);
  free(tokens);
  return 0;
}
