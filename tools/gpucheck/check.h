/* kva_gpu_check: runs the cases of kva_gpu_pack on a device, on a machine that has neither LLVM nor this source tree.
 */
#ifndef KVA_TOOLS_GPUCHECK_CHECK_H
#define KVA_TOOLS_GPUCHECK_CHECK_H

#include "tools/gpucheck/format.h"

/* By number in gpu_case.artifact; the table comes from kva_gpu_pack. */
typedef const kva_artifact *(*gpu_artifact)(void);
extern const gpu_artifact gpu_artifacts[];
extern const int gpu_n_artifacts;

#endif
