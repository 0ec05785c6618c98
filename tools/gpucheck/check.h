/* kva_gpu_check: runs the cases of kva_gpu_pack on a device, on a machine without LLVM or this source tree. */
#ifndef KVA_TOOLS_GPUCHECK_CHECK_H
#define KVA_TOOLS_GPUCHECK_CHECK_H

#include "tools/gpucheck/format.h"

/* Indexed by gpu_case.artifact; kva_gpu_pack generates the table. */
typedef const kva_artifact *(*gpu_artifact)(void);
extern const gpu_artifact gpu_artifacts[];
extern const int gpu_n_artifacts;

#endif
