/* Trained weights from a file into a module. */
#ifndef KVA_TOOLS_DRIVER_TRAINED_H
#define KVA_TOOLS_DRIVER_TRAINED_H

#include "frontend/frontend.h"

/* Takes parameters, and constants of an ONNX model, from a safetensors file or checkpoint by name; low-rank updates are
 * merged. Other tensors of the file (moments, counters) are ignored, but a parameter of the model that it lacks is an
 * error, and so is a file without any tensor of the model. Nothing refers to the file afterwards. */
KVA_MUST_USE kva_status kva_load_weights(kva_module *m, const char *path, kva_diag *diag);

#endif
