/* What the main function of an executable made by `kvasir build --exe` calls. info: alternating keys and values,
 * terminated by NULL; it holds facts that the tables lack.
 *
 *   prefix        the name that the executable was built under
 *   description   the author's text, or absent
 *   weights       name of the file with the model's large constants, searched beside the executable; or absent
 *   train.*       with --train, the train block: optimizer, lr, steps, batch, schedule, warmup, total, final_ratio,
 *                 data, data.<argument> for each argument of the data source, vocab (the last extent of output
 *                 0); precision of products: f32, bf16 or f16; trained, the number of trained elements;
 *                 range.<input>, "LOW HIGH" or "LOW HIGH IGNORED": values from LOW to HIGH - 1, or IGNORED
 *   generate.*    with --generate: tokenizer, the text of a tokenizer.json, or absent where tokens are bytes; chat, the
 *                 name of its format of chats, or absent; context, tokens of a text at most, or absent: any number */
#ifndef KVA_RUNTIME_EXE_EXE_H
#define KVA_RUNTIME_EXE_EXE_H

#include "runtime/abi.h"
#include "runtime/base/base.h"

int kva_infer_main(int argc, char **argv, const kva_artifact *artifact, const char *const *info);
int kva_train_main(int argc, char **argv, const kva_artifact *artifact, const char *const *info);
int kva_generate_main(int argc, char **argv, const kva_artifact *artifact, const char *const *info);

/* The value of a key; NULL: absent. */
const char *kva_info_get(const char *const *info, const char *key);
/* The program's name, for messages. */
const char *kva_exe_name(int argc, char **argv);
/* The path of a file in the executable's folder, in the arena; NULL for NULL. */
const char *kva_exe_beside(const char *name, kva_arena *arena);
/* Whether two paths, or links to them, are one regular file. */
bool kva_exe_same_file(const char *a, const char *b);
/* Whether two files that are to be written, which need not be there yet, would be one. false where one is NULL. */
bool kva_exe_same_output(const char *a, const char *b);

#endif
