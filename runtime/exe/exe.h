/* What the main function of an executable made by `kvasir build --exe` calls. info: keys and values in turn, closed by
 * NULL: facts that the tables do not have.
 *
 *   prefix        the name that the executable was built under
 *   description   text of the model's author, or absent
 *   weights       name of the file with the model's large constants, looked for beside the executable; or absent
 *   train.*       with --train, the train block: optimizer, lr, steps, batch, schedule, warmup, total, final_ratio,
 *                 data, data.<argument> for each argument of the data source, vocab (the last extent of output
 *                 0); precision of products: f32, bf16 or f16; trained, the number of elements that train */
#ifndef KVA_RUNTIME_EXE_EXE_H
#define KVA_RUNTIME_EXE_EXE_H

#include "runtime/abi.h"

int kva_infer_main(int argc, char **argv, const kva_artifact *artifact, const char *const *info);
int kva_train_main(int argc, char **argv, const kva_artifact *artifact, const char *const *info);

/* A value by its key; NULL: absent. */
const char *kva_info_get(const char *const *info, const char *key);

#endif
