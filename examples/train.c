/* Training from a C program: own data, steps, evaluation, access to parameters, a checkpoint. The model is
 * models/mlp.kv, compiled with kvasir build --train. */
#include "mlp.h"
#include "runtime/runtime.h"

#include <stdio.h>

/* Rows of tokens that count upwards from a start that depends on seed, step and row. fill must be a pure function. */
static kva_status fill(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *t, kva_diag *diag) {
  (void)self, (void)n, (void)diag;
  int32_t *tokens = t[0].data, *targets = t[1].data;
  int64_t rows = t[0].dims[0], length = t[0].dims[1];
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < length; i++) {
      tokens[r * length + i] = (int32_t)((seed + (uint64_t)step * 17 + (uint64_t)(r * 5 + i) + evaluation) % 256);
      targets[r * length + i] = (tokens[r * length + i] + 1) % 256;
    }
  return KVA_OK;
}

static kva_status train(kva_session *s, kva_trainer *t, const char *path, kva_diag *diag) {
  kva_train_event e;
  while (kva_trainer_done(t) < 60) KVA_TRY(kva_trainer_step(t, diag, &e));
  printf("step %lld: %s %.4f\n", (long long)e.step, e.names[0], e.values[0]);
  KVA_TRY(kva_trainer_save(t, path, diag));
  KVA_TRY(kva_trainer_evaluate(t, diag, &e));
  double before = e.values[0];
  kva_tensor w; /* the parameter itself: the next step uses what is written to it */
  if (!kva_session_state(s, "embed", &w)) return KVA_INVALID;
  for (int64_t i = 0; i < w.dims[0] * w.dims[1]; i++) ((float *)w.data)[i] = 0;
  KVA_TRY(kva_trainer_evaluate(t, diag, &e));
  printf("evaluation %.4f, without its embedding %.4f", before, e.values[0]);
  KVA_TRY(kva_trainer_load(t, path, diag));
  KVA_TRY(kva_trainer_evaluate(t, diag, &e));
  printf(", loaded again %.4f\n", e.values[0]);
  return e.values[0] == before ? KVA_OK : KVA_INVALID;
}

int main(int argc, char **argv) {
  kva_diag *diag = kva_diag_create();
  kva_session *s = NULL;
  kva_trainer *t = NULL;
  kva_data_source data = {.name = "upwards", .fill = fill};
  const kva_symbol_value length = {"T", 24};
  const kva_train_options options = {.batch = 16,
                                     .eval_batches = 4,
                                     .n_symbols = 1,
                                     .symbols = &length,
                                     .schedule = {.kind = KVA_SCHEDULE_WARMUP, .lr = 0.01, .warmup = 10}};
  kva_status status = kva_session_create(mlp_artifact(), &(kva_session_options){.seed = 1}, diag, &s);
  if (status == KVA_OK) status = kva_trainer_create(s, &options, diag, &t);
  if (status == KVA_OK) kva_trainer_bind(t, &data);
  if (status == KVA_OK) status = train(s, t, argc > 1 ? argv[1] : "train.safetensors", diag);
  kva_diag_print(diag, stderr);
  kva_trainer_destroy(t);
  kva_session_destroy(s);
  kva_diag_destroy(diag);
  return kva_status_exit_code(status);
}
