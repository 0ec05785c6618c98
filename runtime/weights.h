/* Constants that an artefact leaves in a safetensors file (`kvasir build --weights FILE`): CONST buffers with a size
 * but no data, named like the file's tensors. A name ends in a hash of the content, so a file of another model, or of
 * other weights of the same model, is detected. */
#ifndef KVA_RUNTIME_WEIGHTS_H
#define KVA_RUNTIME_WEIGHTS_H

#include "runtime/runtime.h"

/* An artefact's tables with all constants filled in, backed by the mapped file. */
typedef struct kva_weights kva_weights;

/* Whether constants are missing from the artefact. */
bool kva_weights_needed(const kva_artifact *a);
/* `a` must outlive the result. A file of tensors for an artefact that needs none is an error. */
KVA_MUST_USE kva_status kva_weights_attach(const kva_artifact *a, const char *path, kva_diag *diag,
                                           kva_weights **out_weights);
const kva_artifact *kva_weights_artifact(const kva_weights *w);
void kva_weights_destroy(kva_weights *w);

#endif
