/* Bytes as a checkpoint of a small model: read, or refused with a message and every state as it was. */
#include "tests/fuzz/fuzz.h"
#include "tests/runtime/sample.h"
#include "runtime/checkpoint.h"

static uint64_t hash_states(kva_session *s) {
  uint64_t hash = 0;
  for (int i = 0; i < kva_session_state_count(s); i++) {
    kva_tensor t;
    kva_session_state_desc(s, i, &t);
    hash = kva_hash(hash, t.data, (size_t)kva_tensor_bytes(&t));
  }
  return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static kva_session *s;
  kva_checkpoint position;
  if (!s) fuzz_require(kva_session_create(&sample_artifact, NULL, NULL, &s) == KVA_OK, "no session");
  uint64_t before = hash_states(s);
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_checkpoint_read(fuzz_file(data, size), s, diag, &position);
  fuzz_answer(status, status == KVA_OK, diag);
  if (fuzz_prints()) kva_diag_print(diag, stderr);
  fuzz_require(status == KVA_OK || hash_states(s) == before, "a checkpoint that was refused changed a state");
  kva_diag_destroy(diag);
  return 0;
}
