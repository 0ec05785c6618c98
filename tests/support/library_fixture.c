#include "tests/support/library_fixture.h"

#include <stdlib.h>
#include <unistd.h>

const char line_model[] = "model line (float[B, 3] x) => (float[B, 2] y) {\n"
                          "  param float[3, 2] w ~ normal(1)\n"
                          "  param float[2] b ~ zeros\n"
                          "  y = x @ w + b\n"
                          "}\n"
                          "train line (float[B, 2] target) {\n"
                          "  d = y - target\n"
                          "  loss = kv.reduce_mean <keepdims = false> (d * d)\n"
                          "  metric worst = kv.reduce_max <keepdims = false> (kv.abs(d))\n"
                          "  optimizer = AdamW <lr = 1e-2>\n"
                          "  steps = 10\n"
                          "  batch = 4\n"
                          "}\n";

const char twice_model[] = "model twice (float[B, T] x, float[T] scale) => (float[B, T] y, float[B] s) {\n"
                           "  y = x * scale + x\n"
                           "  s = kv.reduce_sum <axes = [1], keepdims = false> (y)\n"
                           "}\n";

const kvasir_compile_options uncached = {.cache = "off"};

void print_failure(kvasir_status status, kvasir_messages *messages) {
  if (status != KVASIR_OK) print_error("%s\n", kvasir_messages_text(messages));
  kvasir_messages_destroy(messages);
}

kvasir_model *open_text(const char *text) {
  kvasir_model *model;
  assert_ok(kvasir_model_open_bytes(text, strlen(text), NULL, NULL, &model, &messages));
  return model;
}

kvasir_session *session_of(const char *text, bool training) {
  kvasir_model *model = open_text(text);
  kvasir_program *program;
  kvasir_session *session;
  if (training)
    assert_ok(kvasir_compile_training(model, &uncached, NULL, &program, &messages));
  else
    assert_ok(kvasir_compile(model, &uncached, &program, &messages));
  const kvasir_session_options options = {.threads = 2, .seed = 7};
  assert_ok(kvasir_session_create(program, &options, &session, &messages));
  kvasir_model_destroy(model);
  kvasir_program_destroy(program);
  return session;
}

kvasir_tensor floats(int32_t rank, int64_t d0, int64_t d1, float *data) {
  return (kvasir_tensor){.type = KVASIR_FLOAT, .rank = rank, .dims = {d0, d1}, .data = data};
}

void make_batch(unsigned seed, float *x, float *target) {
  static const float w[3][2] = {{1, -1}, {0.5f, 2}, {-2, 0.25f}};
  for (int i = 0; i < ROWS * 3; i++) x[i] = (float)(kva_uniform01(kva_philox4x32((uint64_t)i, seed, 1).v[0]) - 0.5);
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < 2; c++)
      target[2 * r + c] = x[3 * r] * w[0][c] + x[3 * r + 1] * w[1][c] + x[3 * r + 2] * w[2][c];
}

/* ---- nothing is printed ------------------------------------------------------------------------------------------ */

static int kept_out, kept_err;
static FILE *printed;

int silence_begin(void **state) {
  (void)state;
  printed = tmpfile();
  fflush(NULL);
  kept_out = dup(1);
  kept_err = dup(2);
  return printed && dup2(fileno(printed), 1) == 1 && dup2(fileno(printed), 2) == 2 ? 0 : -1;
}

int silence_end(void **state) {
  (void)state;
  char text[4096];
  fflush(NULL);
  dup2(kept_out, 1);
  dup2(kept_err, 2);
  close(kept_out);
  close(kept_err);
  rewind(printed);
  size_t n = fread(text, 1, sizeof text - 1, printed);
  text[n] = 0;
  fclose(printed);
  if (n) fprintf(stderr, "printed: %s\n", text);
  return n ? -1 : 0;
}
