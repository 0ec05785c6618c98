/* Loads trained weights from a file into a module. */
#ifndef KVA_TOOLS_DRIVER_TRAINED_H
#define KVA_TOOLS_DRIVER_TRAINED_H

#include "frontend/frontend.h"

/* Takes parameters, and constants of an ONNX model, by name from a safetensors file or checkpoint; low-rank updates are
 * merged. The state of a training (moments, counters) is ignored. Parameters missing from the file and tensors that
 * belong to nothing of the model are errors that name all of them; so is a checkpoint with a wrong sum. Nothing refers
 * to the file afterwards. */
KVA_MUST_USE kva_status kva_load_weights(kva_module *m, const char *path, kva_diag *diag);

#endif
