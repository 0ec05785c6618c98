/* Loads trained weights from a file into a module. */
#ifndef KVA_TOOLS_DRIVER_TRAINED_H
#define KVA_TOOLS_DRIVER_TRAINED_H

#include "frontend/frontend.h"

/* Takes parameters, and constants of an ONNX model, by name from a safetensors file or checkpoint; low-rank updates are
 * merged. Other tensors (moments, counters) are ignored. A parameter missing from the file is an error, and so is a
 * file without any of the model's tensors. Nothing refers to the file afterwards. */
KVA_MUST_USE kva_status kva_load_weights(kva_module *m, const char *path, kva_diag *diag);

#endif
